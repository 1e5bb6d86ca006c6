/* The network, in a worker: rows of token ids to logits at some positions. ONNX Runtime is loaded before this. */
"use strict";

let session = null;

async function open({ wasm, module, model }) {
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = wasm;
  ort.env.wasm.wasmPaths = { mjs: URL.createObjectURL(new Blob([module], { type: "text/javascript" })) };
  session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"] });
  return null;
}

async function predict({ ids, positions }) {
  const shape = [1, ids.length];
  const { logits } = await session.run({
    input_ids: new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), shape),
    attention_mask: new ort.Tensor("int64", new BigInt64Array(ids.length).fill(1n), shape),
  });
  const size = logits.dims[2];
  return positions.map((position) => logits.data.slice(position * size, (position + 1) * size));
}

let queue = Promise.resolve();
onmessage = ({ data }) => {
  queue = queue.then(async () => {
    try {
      postMessage({ key: data.key, result: await (data.model ? open(data) : predict(data)) });
    } catch (error) {
      postMessage({ key: data.key, error: error.message });
    }
  });
};
