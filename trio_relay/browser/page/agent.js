/**
 * Runs in the page's own world, at document start, on every http(s) page: looks for a WebMCP runtime, reports its tools,
 * and runs them. Everything here can be read and replaced by the page, so nothing here is trusted: it can only say what
 * the page could say anyway. `bridge.js`, in the extension's world, is the other end.
 *
 * Up (to bridge.js)    {type: "state", runtime, tools} | {type: "result", callId, result} | {type: "progress", callId, …}
 * Down (from it)       {type: "call", callId, toolName, args} | {type: "cancel", callId} | {type: "report"}
 *
 * Both travel as JSON text in the `detail` of a CustomEvent on `document`: text is all that crosses worlds unharmed.
 */
(() => {
  "use strict";

  const UP = "trio-relay:from-page";
  const DOWN = "trio-relay:to-page";
  const RETIRE = Symbol.for("trio-relay.agent.retire");

  // Taken before any script of the page runs, as pages do replace them.
  const { parse, stringify } = JSON;
  const later = window.setTimeout.bind(window);
  const Event = window.CustomEvent;

  /** Members of a tool that mean something to an MCP client. `window` and `origin` of native tools do not. */
  const TOOL_MEMBERS = ["name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons", "_meta", "execution"];

  /** When to look for a runtime again, in ms since the last look: pages load theirs late, and may replace it. */
  const LOOK_AFTER = [50, 100, 200, 400, 800, 1500];
  const LOOK_EVERY = 2000;

  /** A second injection (the extension was reloaded or updated) replaces the first: no call may run twice. */
  window[RETIRE]?.();
  const retired = new AbortController();
  Object.defineProperty(window, RETIRE, { value: () => retired.abort(), configurable: true });

  const send = (message) => document.dispatchEvent(new Event(UP, { detail: stringify(message) }));

  // ---- the runtime -------------------------------------------------------------------------------------------------

  /**
   * The page's WebMCP, as `{object, name, list(), run(tool, args, signal), silent}`, or null.
   *
   * Generations differ in where it is and in how it takes arguments, and no tool may be run a second time to find out: so
   * `inputFor` makes an argument that every one of them reads correctly.
   */
  function findRuntime() {
    for (const [owner, name] of [[document, "document.modelContext"], [navigator, "navigator.modelContext"]]) {
      const context = owner.modelContext;
      if (!context) continue;
      if (typeof context.getTools === "function" && typeof context.executeTool === "function") {
        return {
          object: context,
          name,
          list: async () => enriched([...(await context.getTools())], context),
          run: (tool, args, signal) => context.executeTool(tool, inputFor(tool, args), { signal }),
        };
      }
      if (typeof context.listTools === "function" && typeof context.callTool === "function") {
        return {
          object: context,
          name,
          list: async () => listed(await context.listTools()),
          run: (tool, args, signal) => context.callTool({ name: tool.name, arguments: args }, { signal }),
        };
      }
    }
    const testing = navigator.modelContextTesting;
    if (testing && typeof testing.listTools === "function" && typeof testing.executeTool === "function") {
      return {
        object: testing,
        name: "navigator.modelContextTesting",
        list: async () => listed(await testing.listTools()),
        run: (tool, args, signal) => testing.executeTool(tool.name, stringify(args), { signal }),
      };
    }
    const bare = document.modelContext ?? navigator.modelContext;
    return bare ? { object: bare, name: "modelContext without getTools", list: async () => [], run: null } : null;
  }

  const listed = (answer) => (Array.isArray(answer) ? answer : answer?.tools ?? []);

  /** MCP-B runtimes keep what `getTools` may not say (outputSchema, more annotations) in a `listTools` of their own. */
  function enriched(tools, context) {
    if (typeof context.listTools !== "function") return tools;
    try {
      const more = new Map(listed(context.listTools()).map((tool) => [tool.name, tool]));
      return tools.map((tool) => {
        const extra = more.get(tool.name);
        if (!extra) return tool;
        const annotations = { ...tool.annotations, ...extra.annotations };
        return Object.assign(Object.create(tool), extra, { annotations }, { [ORIGINAL]: tool });
      });
    } catch {
      return tools;
    }
  }

  /** The tool object the runtime itself gave out, behind an enriched one. */
  const ORIGINAL = Symbol("original");

  /**
   * Arguments that are an object to those who want an object and JSON text to those who want text.
   *
   * Chromium 156 takes an object; Chrome up to 155 and the MCP-B polyfills turn what they get into a string first. Where the
   * schema is text, the runtime is of a generation that takes text, and gets just that.
   */
  function inputFor(tool, args) {
    const text = stringify(args);
    if (typeof tool.inputSchema === "string") return text;
    Object.defineProperty(args, Symbol.toPrimitive, { value: () => text });
    return args;
  }

  // ---- state -------------------------------------------------------------------------------------------------------

  let runtime = null;
  /** name → the runtime's tool, as last listed. Not listed anew for each call: polyfills wait for a timer to do it, and a
   * hidden tab's timers may take a minute. */
  let known = new Map();
  let shown = "";
  let refreshing = false;
  let again = false;

  /** Tell the bridge what there is, if that has changed or `force`. */
  async function refresh(force = false) {
    if (refreshing) {
      again = true;
      shown = force ? "" : shown;
      return;
    }
    refreshing = true;
    try {
      do {
        again = false;
        let tools = [];
        try {
          const listed = runtime ? await runtime.list() : [];
          const described = listed.map((tool) => [describe(tool), tool]).filter(([shown]) => shown);
          tools = described.map(([shown]) => shown);
          known = new Map(described.map(([{ name }, tool]) => [name, tool]).reverse()); // of two with one name the first counts
        } catch {
          // A document that is not active yet, or a runtime being set up: asked again at the next look.
        }
        const state = { type: "state", runtime: runtime?.name ?? null, tools };
        const text = stringify(state);
        if (!retired.signal.aborted && (force || text !== shown)) {
          shown = text;
          document.dispatchEvent(new Event(UP, { detail: text }));
        }
        force = false;
      } while (again);
    } finally {
      refreshing = false;
    }
  }

  /** A tool as JSON can carry it; null if it cannot, and the others stay. */
  function describe(tool) {
    try {
      const described = {};
      for (const member of TOOL_MEMBERS) {
        const value = tool[member];
        if (value === undefined || value === null || typeof value === "function" || (member === "title" && value === "")) continue;
        described[member] = value;
      }
      return parse(stringify(described));
    } catch {
      return null;
    }
  }

  const onChange = () => void refresh();

  function look() {
    if (retired.signal.aborted) return;
    const found = findRuntime();
    if (found?.object !== runtime?.object) {
      runtime?.object.removeEventListener?.("toolchange", onChange);
      runtime = found;
      found?.object.addEventListener?.("toolchange", onChange, { signal: retired.signal });
      found?.object.registerToolsChangedCallback?.(onChange);
      void refresh();
    } else if (runtime && (looks < LOOK_AFTER.length || !runtime.object.addEventListener)) {
      void refresh(); // no event, or not yet sure of it
    }
  }

  // ---- calls -------------------------------------------------------------------------------------------------------

  /** callId → {controller, toolName} */
  const calls = new Map();

  async function call({ callId, toolName, args }) {
    const controller = new AbortController();
    calls.set(callId, { controller, toolName });
    let result;
    try {
      const tool = runtime?.run && known.get(toolName);
      if (!tool) {
        result = failure(`This page has no tool "${toolName}" any more.`);
      } else {
        result = toResult(await runtime.run(tool[ORIGINAL] ?? tool, args, controller.signal));
      }
    } catch (error) {
      const said = error?.message ?? error;
      result = failure(`The page's tool "${toolName}" failed: ${said}`);
    }
    if (!calls.delete(callId) || retired.signal.aborted) return; // cancelled: nobody waits
    try {
      send({ type: "result", callId, result });
    } catch (error) {
      send({ type: "result", callId, result: failure(`The result of "${toolName}" is no JSON: ${error?.message}`) });
    }
  }

  const failure = (text) => ({ content: [{ type: "text", text }], isError: true });

  /**
   * What a runtime hands out, as a CallToolResult. Browsers give text: JSON where the page returned an object, else the bare
   * value, so a text "42" and the number 42 look alike and both stay text.
   */
  function toResult(value) {
    let text = value;
    if (typeof value === "string") {
      try {
        value = parse(value);
      } catch {
        // Just text.
      }
    } else {
      text = value === undefined ? "" : stringify(value) ?? String(value);
    }
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      const { content, structuredContent, isError } = value;
      const shaped = Array.isArray(content) || (content === undefined && (typeof isError === "boolean" || isObject(structuredContent)));
      if (shaped) return content === undefined ? { content: [], ...value } : value;
      if (value.resultType === "input_required") return value; // the relay says that it cannot go on with it
      return { content: [{ type: "text", text }], structuredContent: value };
    }
    return { content: text === "" ? [] : [{ type: "text", text }] };
  }

  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

  /**
   * WebMCP has no progress yet. A page that wants to report it dispatches on `document`
   * `new CustomEvent("toolprogress", {detail: {name, progress, total?, message?}})`; it counts for the call of that tool, if just one runs.
   */
  function progress({ detail }) {
    const running = [...calls].filter(([, { toolName }]) => toolName === detail?.name);
    if (running.length !== 1) return;
    const { progress, total, message } = detail;
    send({ type: "progress", callId: running[0][0], progress, total, message });
  }

  // ---- wiring ------------------------------------------------------------------------------------------------------

  document.addEventListener(
    DOWN,
    ({ detail }) => {
      const message = parse(detail);
      if (message.type === "call") void call(message);
      else if (message.type === "report") void refresh(true);
      else if (message.type === "cancel") {
        const running = calls.get(message.callId);
        calls.delete(message.callId);
        running?.controller.abort(new DOMException(message.reason ?? "cancelled", "AbortError"));
      }
    },
    { signal: retired.signal },
  );
  document.addEventListener("toolprogress", progress, { signal: retired.signal });
  document.addEventListener("DOMContentLoaded", look, { signal: retired.signal });
  window.addEventListener("load", look, { signal: retired.signal });

  let looks = 0;
  (function keepLooking() {
    if (retired.signal.aborted) return;
    try {
      look();
    } catch {
      // The page's own `modelContext` threw; it may not the next time.
    }
    later(keepLooking, LOOK_AFTER[looks++] ?? LOOK_EVERY);
  })();
})();
