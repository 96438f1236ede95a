/**
 * The options page. The words are made in words.js. `options.html#ask`, which the popup opens, makes Chrome ask for local network
 * access at once.
 */

import { copyable, element, showNotice } from "./notice.js";
import { makeChromeAsk, watchPermission } from "./permission.js";
import { loadSettings, setPort, setSite } from "./settings.js";
import { permissionWords, pinOption, readPort, savedWords, siteSettingsPage, sitesOffWords } from "./words.js";

const id = chrome.runtime.id;
const at = (name) => document.getElementById(name);

async function savePort(event) {
  event.preventDefault();
  const read = readPort(at("port").value);
  const wrong = read.problem !== undefined;
  at("port").setAttribute("aria-invalid", String(wrong));
  at("port-said").textContent = wrong ? read.problem : savedWords(read.port);
  if (wrong) at("port").focus();
  else await setPort(read.port);
}

async function renderSites() {
  const { sitesOff } = await loadSettings();
  at("sites-said").textContent = sitesOffWords(sitesOff.length);
  at("sites").replaceChildren(
    ...sitesOff.toSorted().map((site) => {
      const button = element("button", { type: "button", "aria-label": `Switch ${site} on again` }, "Switch on again");
      button.addEventListener("click", () => void setSite(site, true));
      return element("li", {}, element("span", { title: site }, site), button);
    }),
  );
}

async function ask() {
  await makeChromeAsk((await loadSettings()).port);
}

function act(does) {
  if (does === "ask") void ask();
  else void chrome.tabs.create({ url: siteSettingsPage(id) });
}

at("port-form").addEventListener("submit", (event) => void savePort(event));
chrome.storage.local.onChanged.addListener((changed) => "sitesOff" in changed && void renderSites());

at("id").textContent = id;
at("pin").append(copyable(pinOption(id)));
at("port").value = (await loadSettings()).port ?? "";
await renderSites();
await watchPermission((state) => showNotice(at("permission"), permissionWords(state), act));
if (location.hash === "#ask") await ask();
