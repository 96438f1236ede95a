/** Puts notices of words.js on a page. Texts go in as text, never as HTML: some of them were written by web pages. */

/** @returns {HTMLElement} with the texts and elements in it */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/**
 * Show a notice in `place`. Nothing is touched if it is there already: buttons keep the focus, and screen readers their peace.
 * @param {HTMLElement} place
 * @param {import("./words.js").Notice} notice
 * @param {(does: string) => void} act called when one of its buttons is pressed
 */
export function showNotice(place, notice, act) {
  const text = JSON.stringify(notice);
  if (place.dataset.shows === text) return;
  place.dataset.shows = text;
  place.dataset.tone = notice.tone;
  const parts = [element("p", { class: "title" }, notice.title), ...notice.lines.map((line) => element("p", {}, line))];
  if (notice.copy) parts.push(copyable(notice.copy));
  for (const { does, label } of notice.actions ?? []) {
    const button = element("button", { type: "button" }, label);
    button.addEventListener("click", () => act(does));
    parts.push(button);
  }
  place.replaceChildren(...parts);
}

/** A text with a button that copies it. */
export function copyable(text) {
  const button = element("button", { type: "button", "aria-label": `Copy ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  });
  return element("div", { class: "copyable" }, element("code", {}, text), button);
}
