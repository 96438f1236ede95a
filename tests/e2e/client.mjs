// An official TypeScript client under remote control: commands come as JSON lines on stdin, events go to stdout.
//   node client.mjs v1|v2 legacy|auto|modern COMMAND [ARGS...]
// Commands: {id, op: "list"} and {id, op: "call", name, arguments, timeout?, progress?}; end of file closes the client.
// Events: {event: "ready" | "list_changed" | "progress" | "error" | "closed", ...}, and {id, result} or {id, error}.
import { createInterface } from 'node:readline';

const [sdk, era, command, ...args] = process.argv.slice(2);
const v1 = '@modelcontextprotocol/sdk/client';
const { Client } = await import(sdk === 'v1' ? `${v1}/index.js` : '@modelcontextprotocol/client');
const { StdioClientTransport } = await import(sdk === 'v1' ? `${v1}/stdio.js` : '@modelcontextprotocol/client/stdio');

const say = message => process.stdout.write(JSON.stringify(message) + '\n');

const client = new Client({ name: `e2e-${sdk}-${era}`, version: '1' }, {
    capabilities: {},
    listChanged: { tools: { autoRefresh: false, debounceMs: 0, onChanged: () => say({ event: 'list_changed' }) } },
    ...(era === 'auto' && { versionNegotiation: { mode: 'auto' } }),
    ...(era === 'modern' && { versionNegotiation: { mode: { pin: '2026-07-28' } } }),
});
client.onerror = error => say({ event: 'error', message: String(error?.message ?? error) });
client.onclose = () => say({ event: 'closed' });

async function run({ id, op, name, arguments: given, timeout, progress }) {
    const options = {
        ...(timeout && { timeout }),
        ...(progress && { onprogress: value => say({ event: 'progress', id, ...value }) }),
    };
    if (op === 'list') return client.listTools();
    const params = { name, arguments: given };
    return sdk === 'v1' ? client.callTool(params, undefined, options) : client.callTool(params, options);
}

await client.connect(new StdioClientTransport({ command, args, cwd: process.env.RELAY_CWD }));
say({ event: 'ready', server: client.getServerVersion() });

for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    run(request).then(
        result => say({ id: request.id, result }),
        error => say({ id: request.id, error: { code: error.code ?? null, message: String(error.message) } }),
    );
}
await client.close();
process.exit(0);
