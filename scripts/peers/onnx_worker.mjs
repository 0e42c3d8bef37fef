// ONNX Runtime's fused attention on the CPU, driven over stdin: one command as JSON per line, one answer per line.
//   {"command": "version"}                                                   -> {"version": ...}
//   {"command": "prefill" | "decode", "time", "heads", "dim", "scale", "q", "k", "v", "o"}   -> {"seconds": ...}
// q, k, v: files of floats, [time][heads][dim]; for decode q is one token and k, v are [heads][time][dim]. o: where the
// output goes; absent: nowhere. Prefill is GroupQueryAttention, which is causal; decode MultiHeadAttention of one query
// to all keys, which takes them as they lie.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { oneNodeModel, kFloat, kInt32 } from "./onnx_model.mjs";

const [packages, threads] = [process.argv[2], Number(process.argv[3])];
const ort = createRequire(packages + "/")("onnxruntime-node");
const version = createRequire(packages + "/")("onnxruntime-node/package.json").version;

const rows = (name, time, width) => ({ name, type: kFloat, shape: [1, time, width] });
const cache = (name, heads, time, dim) => ({ name, type: kFloat, shape: [1, heads, time, dim] });

function prefillModel({ heads, dim, scale }) {
  const width = heads * dim;
  return oneNodeModel({
    op: "GroupQueryAttention",
    domain: "com.microsoft",
    opset: 20,
    attributes: { num_heads: heads, kv_num_heads: heads, scale: { float: scale } },
    inputs: [
      rows("q", "time", width), rows("k", "time", width), rows("v", "time", width),
      cache("past_k", heads, "past", dim), cache("past_v", heads, "past", dim),
      { name: "last", type: kInt32, shape: [1] }, { name: "total", type: kInt32, shape: [] },
    ],
    outputs: [rows("o", "time", width), cache("new_k", heads, "all", dim), cache("new_v", heads, "all", dim)],
  });
}

function decodeModel({ heads, dim, scale }) {
  return oneNodeModel({
    op: "MultiHeadAttention",
    domain: "com.microsoft",
    opset: 20,
    attributes: { num_heads: heads, scale: { float: scale } },
    inputs: [rows("q", 1, heads * dim), cache("k", heads, "time", dim), cache("v", heads, "time", dim)],
    outputs: [rows("o", 1, heads * dim)],
  });
}

function floats(path) {
  const file = readFileSync(path);
  return new Float32Array(file.buffer, file.byteOffset, file.byteLength / 4);
}

function prefillFeeds({ time, heads, dim, q, k, v }) {
  const tensor = (path) => new ort.Tensor("float32", floats(path), [1, time, heads * dim]);
  const none = () => new ort.Tensor("float32", new Float32Array(0), [1, heads, 0, dim]);
  return {
    q: tensor(q), k: tensor(k), v: tensor(v), past_k: none(), past_v: none(),
    last: new ort.Tensor("int32", Int32Array.from([time - 1]), [1]),
    total: new ort.Tensor("int32", Int32Array.from([time]), []),
  };
}

function decodeFeeds({ time, heads, dim, q, k, v }) {
  const tensor = (path) => new ort.Tensor("float32", floats(path), [1, heads, time, dim]);
  return { q: new ort.Tensor("float32", floats(q), [1, 1, heads * dim]), k: tensor(k), v: tensor(v) };
}

// Sessions and inputs stay: only the run is timed.
const loaded = new Map();
async function load(command) {
  const key = JSON.stringify([command.command, command.time]);
  if (!loaded.has(key)) {
    const prefill = command.command === "prefill";
    const model = prefill ? prefillModel(command) : decodeModel(command);
    const options = { intraOpNumThreads: threads, interOpNumThreads: 1 };
    loaded.set(key, {
      session: await ort.InferenceSession.create(model, options),
      feeds: prefill ? prefillFeeds(command) : decodeFeeds(command),
    });
  }
  return loaded.get(key);
}

async function answer(command) {
  if (command.command === "version") return { version };
  const { session, feeds } = await load(command);
  const start = performance.now();
  const { o } = await session.run(feeds, ["o"]);
  const seconds = (performance.now() - start) / 1e3;
  if (command.o) writeFileSync(command.o, new Uint8Array(o.data.buffer, o.data.byteOffset, o.data.byteLength));
  return { seconds };
}

for await (const line of createInterface({ input: process.stdin })) {
  try {
    console.log(JSON.stringify(await answer(JSON.parse(line))));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error.message ?? error) }));
  }
}
