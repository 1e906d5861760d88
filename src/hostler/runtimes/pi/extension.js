// Loaded into Pi by hostler, which writes `const RULES = {...};` before this text. It holds what Pi has no switch for: the
// session's permissions, MCP servers with a limit to their start, and prompts that are no commands.
import { lstatSync, realpathSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";

const READS = new Set(["read", "grep", "find", "ls"]);
const WRITES = new Set(["write", "edit"]);
const ODD_SPACES = /[\u00A0\u2000-\u200A\u202F\u205F\u3000]/; // Pi would make plain spaces of them
const COMPOUND = /[;&|<>`\n]|\$\(/; // more than one command
const NO = "It is not allowed in this session.";

function like(pattern, text) {
  const parts = pattern.split("*").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${parts.join("[\\s\\S]*")}$`).test(text);
}

function fits(rule, tool, input, strict) {
  if (!like(rule.tool, tool)) return false;
  if (rule.pattern === null) return true;
  const about = tool === "bash" ? input.command : (input.path ?? Object.values(input)[0]);
  if (typeof about !== "string") return false;
  if (tool !== "bash" || about === rule.pattern) return like(rule.pattern, about);
  // A pattern allows a single command; it forbids one that is part of a longer line as well.
  if (strict) return !COMPOUND.test(about) && like(rule.pattern, about);
  return [about, ...about.split(/[;&|\n]+/)].some((part) => like(rule.pattern, part.trim()));
}

// The real path of a file that may be about to be made; null where a link leads nowhere.
function real(path) {
  try {
    lstatSync(path);
  } catch {
    const folder = dirname(path);
    const above = folder === path ? path : real(folder);
    return above === null ? null : join(above, basename(path));
  }
  try {
    return realpathSync(path);
  } catch {
    return null;
  }
}

// Whether a tool's path is in a folder that may be written; it then is what was looked at.
function inside(input, cwd) {
  if (typeof input.path !== "string" || ODD_SPACES.test(input.path) || /^@?~/.test(input.path)) return false;
  const path = real(resolve(cwd, input.path.replace(/^@/, "")));
  if (path === null || ODD_SPACES.test(path)) return false;
  if (!RULES.folders.some((folder) => path.startsWith(`${real(folder)}/`))) return false;
  input.path = path;
  return true;
}

function judge(tool, input, cwd) {
  if (RULES.deny.some((rule) => fits(rule, tool, input, false))) return "deny";
  if (tool.startsWith("mcp__host__") || RULES.mode === "full") return "allow";
  if (RULES.allow.some((rule) => fits(rule, tool, input, true)) || READS.has(tool)) return "allow";
  if (RULES.mode === "ask") return "ask";
  if (RULES.confined && tool === "bash") return "allow";
  if (RULES.mode === "edit" && WRITES.has(tool) && (RULES.confined || inside(input, cwd))) return "allow";
  return "deny";
}

async function reasonToBlock(event, ctx) {
  const verdict = judge(event.toolName, event.input, ctx.cwd);
  if (verdict !== "ask") return verdict === "allow" ? null : NO;
  const asked = JSON.stringify({ tool: event.toolName, input: event.input });
  const said = await ctx.ui.input("hostler.approval", asked, { signal: ctx.signal });
  const answer = JSON.parse(said ?? '{"allow": false}');
  return answer.allow === true ? null : answer.reason || NO;
}

export default function (pi) {
  let over = false;
  for (const [name, server] of Object.entries(RULES.servers)) pi.registerMcpServer(name, server.config);

  pi.on("tool_call", async (event, ctx) => {
    let reason;
    try {
      reason = await reasonToBlock(event, ctx);
    } catch (error) {
      reason = `${NO} (${error})`;
    }
    if (reason !== null) return { block: true, reason };
  });

  pi.on("input", (event) => {
    if (!event.text.startsWith(RULES.mark)) return;
    const text = event.text.slice(RULES.mark.length);
    const content = event.images?.length ? [{ type: "text", text }, ...event.images] : text;
    pi.sendUserMessage(content, { deliverAs: event.streamingBehavior ?? "steer" });
    return { action: "handled" };
  });

  pi.on("session_start", (_event, ctx) => {
    const tell = (what) => ctx.ui.setStatus("hostler", JSON.stringify(what));
    tell({ ready: true });
    const began = Date.now();
    const waiting = new Map(Object.entries(RULES.servers));
    const look = () => {
      if (over) return;
      const tools = pi.getAllTools().map((tool) => tool.name);
      for (const [name, server] of waiting) {
        if (tools.some((tool) => tool.startsWith(`mcp__${name}__`))) {
          waiting.delete(name);
          tell({ connected: name });
        } else if (Date.now() - began > server.seconds * 1000) {
          waiting.delete(name);
          pi.unregisterMcpServer(name);
          tell({ failed: name });
        }
      }
      if (waiting.size) setTimeout(look, 20);
    };
    look();
  });

  pi.on("session_shutdown", () => {
    over = true;
  });
}
