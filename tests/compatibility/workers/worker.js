// Runs jobs in ONNX Runtime for Node.js, and for browsers (WebAssembly) under Node.js.
// The protocol is that of worker.py.
"use strict";
const fs = require("fs");

const PACKAGES = { onnxruntime_node: "onnxruntime-node", onnxruntime_web: "onnxruntime-web" };
console.log = console.error; // answers alone go to the standard output
const KINDS = {
  float32: Float32Array,
  float16: globalThis.Float16Array ?? Uint16Array,
  int64: BigInt64Array,
  int32: Int32Array,
  bool: Uint8Array,
};
const WARM_UP_S = 0.1;
const TIMED_S = 0.5;

const seconds = () => Number(process.hrtime.bigint()) / 1e9;

function fed(ort, inputs) {
  const tensors = inputs.map(({ name, dtype, shape, file }) => {
    const bytes = new Uint8Array(fs.readFileSync(file));
    return [name, new ort.Tensor(dtype, new KINDS[dtype](bytes.buffer), shape)];
  });
  return Object.fromEntries(tensors);
}

async function load(job, model) {
  const ort = require(PACKAGES[job.subject]);
  ort.env.logLevel = "fatal";
  if (ort.env.wasm) ort.env.wasm.numThreads = 1;
  const options = { intraOpNumThreads: 1, logSeverityLevel: 4 };
  const session = await ort.InferenceSession.create(new Uint8Array(fs.readFileSync(model)), options);
  return { ort, session };
}

const actions = {
  async run(job) {
    const { ort, session } = await load(job, job.model);
    const outputs = [];
    for (const [set, inputs] of job.inputs.entries()) {
      const found = await session.run(fed(ort, inputs));
      outputs.push(session.outputNames.map((name, index) => {
        const { type, dims, data } = found[name];
        const file = `${job.folder}/${set}-${index}.raw`;
        fs.writeFileSync(file, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
        return { dtype: type, shape: dims, file };
      }));
    }
    return { outputs, facts: {} };
  },
  async time(job) {
    const runs = {};
    for (const [name, model] of Object.entries(job.models)) {
      const { ort, session } = await load(job, model);
      const inputs = fed(ort, job.inputs);
      runs[name] = () => session.run(inputs);
      for (const end = seconds() + WARM_UP_S; seconds() < end; ) await runs[name]();
    }
    const times = Object.fromEntries(Object.keys(runs).map((name) => [name, []]));
    const end = seconds() + TIMED_S * Object.keys(runs).length;
    for (let round = 0; round < job.rounds || seconds() < end; round++) {
      for (const [name, run] of Object.entries(runs)) {
        const start = seconds();
        await run();
        times[name].push(seconds() - start);
      }
    }
    return { times };
  },
};

async function main() {
  for (const line of fs.readFileSync(process.argv[2], "utf8").trim().split("\n")) {
    const job = JSON.parse(line);
    let answer;
    try {
      answer = { outcome: "ok", ...(await actions[job.action](job)) };
    } catch (error) {
      answer = { outcome: "refused", text: String(error) };
    }
    fs.writeSync(1, JSON.stringify(answer) + "\n");
  }
  process.exit(0);
}

main();
