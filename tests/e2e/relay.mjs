// The npm relay with a 10 MB limit (its own command stops at 1 MB): node relay.mjs PORT
import { LocalRelayMcpServer } from "@mcp-b/webmcp-local-relay";

const bridgeOptions = { port: Number(process.argv[2]), portExplicitlySet: true, maxPayloadBytes: 10_000_000 };
const relay = new LocalRelayMcpServer({ bridgeOptions });
await relay.start();
await relay.startStdio();
