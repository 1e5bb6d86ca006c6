/* The backend of the page without a server: the same requests and events, answered in the browser. */
"use strict";

(() => {
  const { config, tokenizer: tokenizerFiles, sources } = unmask.assets;
  const REPLACEMENT = "\uFFFD", MAX_UTF8_BYTES = 4;
  const ORDERS = ["confidence", "margin", "entropy", "left_to_right", "uniform"];

  // ---- assets are gzipped base64 in scripts, since a page of file:// may not fetch

  async function unpack(name) {
    const bytes = Uint8Array.from(atob(unmask.assets[name]), (letter) => letter.charCodeAt(0));
    delete unmask.assets[name];
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  }

  const waiting = new Map();
  let worker = null, count = 0;

  function ask(message, transfer = []) {
    return new Promise((resolve, reject) => {
      waiting.set((count += 1), { resolve, reject });
      worker.postMessage({ ...message, key: count }, transfer);
    });
  }

  async function open() {
    worker = new Worker(URL.createObjectURL(new Blob([sources.runtime, "\n", sources.worker], { type: "text/javascript" })));
    worker.onmessage = ({ data }) => {
      const { resolve, reject } = waiting.get(data.key);
      waiting.delete(data.key);
      if (data.error === undefined) resolve(data.result);
      else reject(new Error(data.error));
    };
    const [wasm, model] = await Promise.all([unpack("wasm"), unpack("model")]);
    await ask({ wasm, model, module: sources.module }, [wasm, model]);
  }

  // ---- texts and rows

  const tokenizer = new unmask.Tokenizer(tokenizerFiles.tokenizer, tokenizerFiles.config);
  const encode = (text) => (text ? tokenizer.encode(text, { add_special_tokens: false }).ids : []);
  const decode = (ids) => (ids.length ? tokenizer.decode(ids, { skip_special_tokens: false, clean_up_tokenization_spaces: false }) : "");

  /* The text of each token; a character of several tokens belongs to the last of them. */
  function pieces(ids) {
    const found = [];
    let start = 0;
    ids.forEach((id, position) => {
      if (id === config.mask || id === config.eos) {
        found.push(id === config.mask ? "" : "\n");
        start = position + 1;
        return;
      }
      const piece = decode(ids.slice(start, position + 1)), next = ids[position + 1];
      const goes = next !== undefined && next !== config.mask && next !== config.eos;
      const incomplete = piece.endsWith(REPLACEMENT) && position + 1 - start < MAX_UTF8_BYTES && goes;
      found.push(incomplete ? "" : piece);
      if (!incomplete) start = position + 1;
    });
    return found;
  }

  function textEnd(ids) {
    const end = config.ends_with_eos ? ids.indexOf(config.eos) : -1;
    return end < 0 ? ids.length : end;
  }

  function parse(text) {
    const ids = [];
    let at = 0;
    for (const match of text.matchAll(/\[MASK(?::([^\]]*))?\]/g)) {
      const size = match[1] ?? "1";
      if (!/^[1-9][0-9]*$/.test(size)) throw new Error(`A blank must be [MASK] or [MASK:n] in the browser, got ${match[0]}.`);
      const before = text.slice(at, match.index);
      ids.push(...encode(config.leading_spaces ? before.replace(/ $/, "") : before));
      if (ids.length + Number(size) > config.max_length) tooLong(ids.length + Number(size));
      ids.push(...Array(Number(size)).fill(config.mask));
      at = match.index + match[0].length;
    }
    ids.push(...encode(text.slice(at)));
    return ids;
  }

  function tooLong(tokens) {
    throw new Error(`The text has ${tokens} tokens and this model reads ${config.max_length}; shorten it.`);
  }

  function textRow(ids) {
    const ended = config.ends_with_eos && !config.pads_with_eos && ids.length < config.row_length;
    return checked(ended ? [...ids, config.eos] : ids);
  }

  function checked(row) {
    if (row.length > config.max_length) tooLong(row.length);
    if (!row.length) throw new Error("The text has no tokens; give a longer text.");
    return row;
  }

  /* The tokens of a text that hold a character of a span are masked; spans count code points. */
  function maskSpans(text, spans) {
    const ids = encode(text);
    let at = 0;
    return pieces(ids).map((piece, index) => {
      const start = at, end = at + Math.max(1, [...piece].length);
      at += [...piece].length;
      return spans.some(([from, to]) => start < to && from < end) ? config.mask : ids[index];
    });
  }

  function rowOf(path, body) {
    if (body.tokens) return checked(body.tokens[0].map((id) => id ?? config.mask));
    if (path === "/v1/edit") return textRow(maskSpans(body.text, body.spans));
    if (path === "/v1/fill") return textRow(parse(body.text));
    const prompt = encode(body.prompt);
    return checked([...prompt, ...Array(body.max_tokens ?? config.row_length - prompt.length).fill(config.mask)]);
  }

  // ---- requests

  const padded = (ids) => {
    const room = config.pads_with_eos ? Math.max(0, config.row_length - ids.length) : 0;
    return [...ids, ...Array(room).fill(config.mask)];
  };
  const predict = (ids, positions) => ask({ ids: padded(ids), positions });

  function timeAt(rate) {
    const place = rate * (config.times.length - 1), left = Math.min(Math.floor(place), config.times.length - 2);
    return config.times[left] + (place - left) * (config.times[left + 1] - config.times[left]);
  }

  function check(name, value, ok, range) {
    if (value !== undefined && !ok(value)) throw new Error(`${name} must be ${range}, got ${value}.`);
  }

  function samplingOptions({ seed = 0, temperature, top_p: topP, steps, order, greedy }) {
    check("seed", seed, Number.isSafeInteger, "an integer");
    check("temperature", temperature, (value) => value >= 0, "at least 0");
    check("top_p", topP, (value) => value > 0 && value <= 1, "in (0, 1]");
    check("steps", steps, (value) => Number.isInteger(value) && value >= 1, "an integer from 1");
    const { temperature: own = 1, top_p: ownTopP = 1 } = config.defaults;
    return { seed, temperature: greedy ? 0 : temperature ?? own, top_p: topP ?? ownTopP, steps, order };
  }

  unmask.backend = {
    features: { score: false, constraints: false },
    async models() {
      await open();
      const facts = { causal: false, length: config.row_length, mask_token_id: config.mask, samplers: ["ancestral"] };
      const end = config.ends_with_eos ? config.eos : null;
      return [{ id: config.name, unmask: { ...facts, eos_token_id: end, orders: ORDERS, default_sampler: "ancestral" } }];
    },
    async post(path, body) {
      const row = rowOf(path, body), masked = row.flatMap((id, position) => (id === config.mask ? [position] : []));
      const rows = (await predict(row, masked)).map((logits) => unmask.logSoftmax(logits));
      const alternatives = rows.map((logP) => unmask.descending(logP).slice(0, body.top).map((id) => (
        { id, text: decode([id]), probability: Math.exp(logP[id]) }
      )));
      return { data: [{ index: 0, alternatives }] };
    },
    async stream(path, body, onEvent, signal) {
      const options = samplingOptions(body), row = rowOf(path, body), model = { ...config, timeAt };
      let before = pieces(row), last = row, facts = { id: "", index: 0 };
      for await (const { call, calls, ids, changes } of unmask.sample(row, predict, model, options)) {
        if (signal?.aborted) throw new DOMException("stopped", "AbortError");
        const texts = pieces(ids), token = (position) => ({ id: ids[position] === config.mask ? null : ids[position], text: texts[position] });
        facts = { ...facts, call, calls };
        last = ids;
        if (!changes) {
          const tokens = ids.map((id, position) => ({ ...token(position), given: id !== config.mask }));
          onEvent({ object: "canvas", ...facts, tokens });
          continue;
        }
        const confidence = new Map(changes.map(([position, , p]) => [position, p]));
        const moved = texts.flatMap((text, position) => (text !== before[position] || confidence.has(position) ? [position] : []));
        onEvent({ object: "canvas.delta", ...facts, changes: moved.map((position) => ({ position, ...token(position), confidence: confidence.get(position) })) });
        before = texts;
      }
      onEvent({ object: "canvas.done", ...facts, text: before.slice(0, textEnd(last)).join("") });
    },
  };
})();
