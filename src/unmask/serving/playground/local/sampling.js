/* The library's sampling in JavaScript: random numbers, the order of positions, and the draw of tokens.
   Same seed, same canvas and equal logits give the same tokens as `unmask.random` and `unmask.samplers`. */
"use strict";
globalThis.unmask ??= {};

(() => {
  const PURPOSE = { REVEAL: 3, TOKEN: 4, PATH: 6 };
  const MAX_UNIFORM = 1 - 2 ** -24;

  // ---- random numbers

  function mix(word) {
    word = Math.imul(word ^ (word >>> 16), 0x7feb352d);
    word = Math.imul(word ^ (word >>> 15), 0x846ca68b);
    return (word ^ (word >>> 16)) >>> 0;
  }

  const fold = (value) => ((value >>> 0) ^ mix(Math.floor(value / 2 ** 32) >>> 0) ^ 0x9e3779b9) >>> 0;
  const prefix = (...values) => values.reduce((state, value) => mix(state ^ mix(fold(value))), 0);
  const uniformOf = (cell) => Math.min(Math.fround(2 * cell + 1) * 2 ** -33, MAX_UNIFORM);
  const uniform = (seed, purpose, step = 0, sample = 0, position = 0) =>
    uniformOf(prefix(purpose, seed, step, sample, position));

  // ---- rows of log-probabilities

  function logSoftmax(row) {
    let top = -Infinity, total = 0;
    for (const value of row) if (value > top) top = value;
    for (const value of row) total += Math.exp(value - top);
    const shift = top + Math.log(total);
    return row.map((value) => value - shift);
  }

  const argmax = (row) => row.reduce((best, value, index) => (value > row[best] ? index : best), 0);
  const descending = (row) => [...row.keys()].sort((a, b) => row[b] - row[a] || a - b);
  const without = (row, token) => row.map((value, index) => (index === token ? -Infinity : value));

  /* Log-weights after temperature and top-p. */
  function truncate(logP, { temperature, top_p: topP }) {
    const logW = temperature === 1 ? logP : logP.map((value) => value / temperature);
    if (!(topP < 1)) return logW;
    const normal = logSoftmax(logW), kept = new Float32Array(logW.length).fill(-Infinity);
    let mass = 0;
    for (const token of descending(normal)) {
      if (mass >= topP) break;
      kept[token] = logW[token];
      mass += Math.exp(normal[token]);
    }
    return kept;
  }

  /* An exact draw: the smallest E / w with exponential E. */
  function drawToken(logW, seed, call, position) {
    const state = prefix(PURPOSE.TOKEN, seed, call, position);
    let best = 0, highest = -Infinity;
    for (let token = 0; token < logW.length; token += 1) {
      if (logW[token] === -Infinity) continue;
      const u = uniformOf(mix(state ^ mix(fold(token))));
      const value = logW[token] - Math.log(-Math.log1p(-u));
      if (value > highest) [best, highest] = [token, value];
    }
    return best;
  }

  // ---- the end of a text, in models that fill the row after it with EOS

  function endsOf(ids, { mask, eos }) {
    const lastText = ids.findLastIndex((id) => id !== mask && id !== eos), firstEos = ids.indexOf(eos);
    return { lastText, firstEos: firstEos < 0 ? ids.length : firstEos, mixed: firstEos >= 0 && lastText > firstEos };
  }

  /* Log-probabilities that order positions: an EOS that is not certain yet is spread over all tokens. */
  function spreadEos(logP, position, ends, eos) {
    if (ends.mixed) return logP;
    if (position > ends.firstEos) return logP.map((_, token) => (token === eos ? 0 : -Infinity));
    const text = without(logP, eos);
    if (position < ends.lastText) return logSoftmax(text);
    const share = logP[eos] - Math.log(logP.length);
    return text.map((value) => Math.log(Math.exp(value) + Math.exp(share)));
  }

  /* Tokens and confidences at `positions`, where only EOS follows EOS; `rows` are log-probabilities. */
  function drawWithEnd(rows, positions, ids, model, options, seed, call) {
    const ends = endsOf(ids, model), greedy = options.temperature === 0, { eos } = model;
    const pEos = rows.map((logP, index) => {
      if (!ends.mixed && positions[index] < ends.lastText) return 0;
      if (!ends.mixed && positions[index] > ends.firstEos) return 1;
      return Math.exp(logSoftmax(greedy ? logP : truncate(logP, options))[eos]);
    });
    const u = greedy ? 0.5 : uniform(seed, PURPOSE.PATH, call), rising = makeRising(pEos);
    return rows.map((logP, index) => {
      if (!ends.mixed && u < rising[index]) return [eos, Math.exp(logP[eos])];
      const text = ends.mixed ? logP : logSoftmax(without(logP, eos));
      const token = greedy ? argmax(text) : drawToken(truncate(text, options), seed, call, positions[index]);
      return [token, Math.exp(logP[token])];
    });
  }

  /* Half-way between the smallest rising sequence above and the largest one below. */
  function makeRising(values) {
    const above = [], below = values.slice();
    values.forEach((value, index) => above.push(Math.max(value, above[index - 1] ?? -Infinity)));
    for (let index = below.length - 2; index >= 0; index -= 1) below[index] = Math.min(below[index], below[index + 1]);
    return above.map((value, index) => 0.5 * (value + below[index]));
  }

  function draw(rows, positions, ids, model, options, seed, call) {
    if (model.pads_with_eos) return drawWithEnd(rows, positions, ids, model, options, seed, call);
    return rows.map((logP, index) => {
      const greedy = options.temperature === 0;
      const token = greedy ? argmax(logP) : drawToken(truncate(logP, options), seed, call, positions[index]);
      return [token, Math.exp(logP[token])];
    });
  }

  // ---- which positions a call writes

  /* Ancestral sampling: the positions that each call reveals, from times drawn in advance. */
  function ancestralPlan(masked, { steps, seed }, timeAt) {
    const times = masked.map((position) => timeAt(uniform(seed, PURPOSE.REVEAL, 0, 0, position)));
    const order = descending(times), calls = [];
    let last = null;
    for (const index of order) {
      const time = steps ? Math.max(1, Math.ceil(times[index] * steps)) : index;
      if (time !== last) calls.push([]);
      calls.at(-1).push(masked[index]);
      last = time;
    }
    return calls.map((positions) => positions.sort((a, b) => a - b));
  }

  /* How many positions each call of an ordered sampler writes: at least one, otherwise equally many. */
  function tokensPerCall(masks, steps) {
    const calls = Math.min(steps || masks, masks), left = [masks];
    let least = Infinity;
    for (let call = 0; call <= calls; call += 1) {
      least = Math.min(least, Math.max(Math.floor(masks * (1 - call / calls) + 0.5) + call, calls));
      left[call] = least - call;
    }
    return left.slice(1).map((value, index) => left[index] - value);
  }

  const SCORES = {
    confidence: (logP) => Math.exp(logP[argmax(logP)]),
    margin: (logP) => {
      const [first, second] = [...logP].sort((a, b) => b - a);
      return Math.exp(first) - Math.exp(second);
    },
    entropy: (logP) => logP.reduce((sum, value) => sum + (value === -Infinity ? 0 : Math.exp(value) * value), 0),
  };

  function select(count, masked, rows, ids, model, { order, seed }) {
    const ends = endsOf(ids, model);
    const scores = masked.map((position, index) => {
      if (order === "left_to_right") return -position;
      if (order === "uniform") return uniform(seed, PURPOSE.REVEAL, 0, 0, position);
      return SCORES[order](model.pads_with_eos ? spreadEos(rows[index], position, ends, model.eos) : rows[index]);
    });
    return descending(scores).slice(0, count).sort((a, b) => a - b);
  }

  /* Write the masks of a row. `predict(ids, positions)` resolves to rows of logits; yields {call, calls, ids, changes}. */
  async function* sample(row, predict, model, options) {
    const ids = row.slice(), masked = () => ids.flatMap((id, position) => (id === model.mask ? [position] : []));
    const plan = options.order ? null : ancestralPlan(masked(), options, model.timeAt);
    const counts = plan ? plan.map((one) => one.length) : tokensPerCall(masked().length, options.steps);
    const isText = (id) => id !== model.mask && id !== model.eos;
    const lastGiven = model.ends_with_eos ? row.findLastIndex(isText) : -1;
    yield { call: 0, calls: counts.length, ids };
    for (let call = 0; call < counts.length; call += 1) {
      const asked = plan ? plan[call] : masked(), logits = await predict(ids, asked);
      const rows = logits.map((one, index) => logSoftmax(asked[index] < lastGiven ? without(one, model.eos) : one));
      const chosen = plan ? [...asked.keys()] : select(counts[call], asked, rows, ids, model, options);
      const positions = chosen.map((index) => asked[index]);
      const drawn = draw(chosen.map((index) => rows[index]), positions, ids, model, options, options.seed, call);
      const changes = positions.map((position, index) => [position, ...drawn[index]]);
      for (const [position, token] of changes) ids[position] = token;
      yield { call: call + 1, calls: counts.length, ids, changes };
    }
  }

  Object.assign(unmask, { sample, uniform, logSoftmax, descending });
})();
