/* A run: its request, every canvas it went through, and what the user marked on it. Functions return new objects. */
"use strict";

(() => {
  let count = 0;

  const newRun = (title, request, kept = {}) => ({
    key: (count += 1), title, request, frames: [], calls: 0, status: "running", error: null, text: "",
    prompt: kept.prompt ?? null, pins: kept.pins ?? new Set(), marks: new Set(), chosen: new Map(),
    selected: null, before: kept.before ?? null,
  });

  /* The run after an event of the server. */
  function receive(run, event) {
    if (event.object === "canvas") {
      const tokens = event.tokens.map((token) => ({ ...token, confidence: null, call: 0 }));
      const given = new Set(tokens.flatMap((token, position) => (token.given ? [position] : [])));
      return { ...run, calls: event.calls, frames: [{ call: 0, tokens }], prompt: run.prompt ?? given };
    }
    if (event.object === "canvas.delta") {
      const tokens = run.frames.at(-1).tokens.slice();
      for (const { position, id, text, confidence } of event.changes) {
        const same = tokens[position].id === id;
        tokens[position] = same ? { ...tokens[position], text } : { id, text, confidence, given: false, call: event.call };
      }
      return { ...run, calls: event.calls, frames: [...run.frames, { call: event.call, tokens }] };
    }
    if (event.object === "canvas.done") return { ...run, calls: event.calls, status: "done", text: event.text };
    return run;
  }

  /* The canvas after `call` network calls, with the tokens the user chose and masked. */
  function canvasAt(run, call) {
    const frame = run.frames.findLast((one) => one.call <= call) ?? run.frames[0];
    if (!frame) return null;
    if (!run.chosen.size && !run.marks.size) return frame;
    const tokens = frame.tokens.map((token, position) => {
      if (run.marks.has(position)) return { ...token, marked: true };
      return run.chosen.get(position) ?? token;
    });
    return { ...frame, tokens };
  }

  /* Token ids of a canvas, null for what is masked; `also` is masked too. */
  const rowOf = (canvas, also = null) =>
    canvas.tokens.map((token, position) => (token.marked || position === also ? null : token.id));

  /* The number of positions up to the end of the text, its EOS included. */
  function shownPositions(tokens, eos) {
    const isText = (token) => token.id !== null && token.id !== eos && token.text && !token.marked;
    const text = tokens.findLastIndex(isText), end = tokens.findIndex((token, at) => at > text && token.id === eos && !token.marked);
    return eos === null || end < 0 ? tokens.length : end + 1;
  }

  function textOf(canvas, eos) {
    const shown = canvas.tokens.slice(0, shownPositions(canvas.tokens, eos));
    const write = (token) => (token.id === null || token.marked ? "░" : token.id === eos ? "\n" : token.text);
    return shown.map(write).join("").replace(/\n$/, (end) => (shown.at(-1).id === eos ? "" : end));
  }

  const toggled = (set, one) => {
    const next = new Set(set);
    if (!next.delete(one)) next.add(one);
    return next;
  };

  const pin = (run, position) => ({ ...run, pins: toggled(run.pins, position), marks: without(run.marks, position) });
  const mark = (run, position) => ({ ...run, marks: toggled(run.marks, position), pins: without(run.pins, position) });
  const without = (set, one) => new Set([...set].filter((other) => other !== one));

  function markOthers(run, canvas) {
    const keeps = (position) => run.pins.has(position) || run.prompt.has(position) || run.chosen.has(position);
    return { ...run, marks: new Set(canvas.tokens.flatMap((_, position) => (keeps(position) ? [] : [position]))) };
  }

  function choose(run, position, { id, text, probability }, call) {
    const chosen = new Map(run.chosen).set(position, { id, text, confidence: probability, given: false, call });
    return { ...run, chosen, pins: new Set(run.pins).add(position), marks: without(run.marks, position) };
  }

  const unedited = (run) => ({ ...run, pins: new Set(), marks: new Set(), chosen: new Map(), selected: null });

  /* Mean confidence of the tokens that each call wrote, and their number: [{call, mean, count}]. */
  function history(run) {
    return run.frames.slice(1).map(({ call, tokens }) => {
      const written = tokens.filter((token) => token.call === call && token.id !== null);
      const total = written.reduce((sum, token) => sum + token.confidence, 0);
      return { call, count: written.length, mean: written.length ? total / written.length : 0 };
    });
  }

  Object.assign(unmask, {
    newRun, receive, canvasAt, rowOf, shownPositions, textOf, pin, mark, markOthers, choose, unedited, history,
  });
})();
