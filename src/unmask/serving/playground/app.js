/* The page: its state, what the buttons do, and where its parts are. */
"use strict";

(() => {
  const { html, render, useEffect, useRef, useState } = htmPreact;
  const { Canvas, Code, Form, Scores, Timeline, TokenPanel, named } = unmask;
  const SECONDS = 7, FASTEST = 16, SLOWEST = 250;
  const LENGTH = 96, ALTERNATIVES = 8, COARSE = 10, PRECISION = 0.1, PATIENCE = 2;
  const WIDE = matchMedia("(min-width: 861px)").matches;
  const START = {
    text: "Once upon a time", selection: [0, 0], model: "", steps: "", order: "", sampler: "", temperature: "", topP: "",
    length: "", seed: "0", constraintKind: "", constraintText: "", compare: [], open: WIDE, compareOpen: WIDE,
  };
  const TOOLS = { look: "shows alternatives", pin: "pins", mask: "masks" };
  const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
  const latest = (runs) => Math.max(0, ...runs.map((run) => run.frames.at(-1)?.call ?? 0));

  /* State that asynchronous code can read as it is now. */
  function useStore(initial) {
    const now = useRef(initial), [, redraw] = useState(0);
    const set = (change) => {
      now.current = { ...now.current, ...(typeof change === "function" ? change(now.current) : change) };
      redraw((count) => count + 1);
    };
    return [now, set];
  }

  function App({ backend, root }) {
    const [now, set] = useStore({
      models: null, failure: null, form: START, runs: [], call: 0, playing: false, speed: 1, tool: "look", numbers: true,
      alternatives: null, scores: [], said: "",
    });
    const abort = useRef(null);
    const state = now.current, { form, runs, models } = state;

    // ---- models

    async function loadModels() {
      set({ failure: null });
      try {
        const models = await backend.models();
        const length = String(Math.min(LENGTH, models[0].unmask.length));
        set({ models, form: { ...now.current.form, model: models[0].id, length } });
      } catch (error) {
        set({ failure: error });
      }
    }
    useEffect(() => void loadModels(), []);
    const modelOf = (id) => models.find((one) => one.id === id);
    const eosOf = (run) => modelOf(run.request.body.model)?.unmask.eos_token_id ?? null;
    const changeForm = (change) => set((state) => ({ form: { ...state.form, ...change } }));

    // ---- runs

    const change = (key, step) => set((state) => ({ runs: state.runs.map((run) => (run.key === key ? step(run) : run)) }));

    function start(runs) {
      abort.current?.abort();
      const controller = (abort.current = new AbortController());
      set({ runs, call: 0, playing: true, alternatives: null, said: "Writing." });
      for (const run of runs) follow(run, controller.signal);
      if (!WIDE) document.getElementById("result").scrollIntoView();
    }

    async function follow({ key, request }, signal) {
      let quarter = 0;
      const onEvent = (event) => {
        if (signal.aborted) return;
        change(key, (run) => unmask.receive(run, event));
        const next = event.calls ? Math.floor((4 * event.call) / event.calls) : 0;
        if (next > quarter && next < 4) set({ said: `Call ${event.call} of ${event.calls}.` });
        quarter = Math.max(quarter, next);
      };
      try {
        await backend.stream(request.path, request.body, onEvent, signal);
        change(key, (run) => ({ ...run, status: "done" }));
      } catch (error) {
        const stopped = signal.aborted || error.name === "AbortError";
        change(key, (run) => ({ ...run, status: stopped ? "stopped" : "error", error: stopped ? null : error.message }));
        if (!stopped) set({ said: error.message });
      }
      const { runs } = now.current, own = runs.find((run) => run.key === key);
      if (own?.status === "done" && runs.every((run) => run.status !== "running")) {
        set({ said: `Finished after ${own.calls} calls: ${own.text}` });
      }
    }

    function stop() {
      abort.current?.abort();
      set({ said: "Stopped." });
    }

    /* Make requests, or show why that is not possible. */
    function attempt(make) {
      try {
        start(make());
      } catch (error) {
        set({ runs: [], failure: null, said: error.message, problem: error.message });
        return;
      }
      set({ problem: null });
    }

    const titleOf = ({ body }) => [body.model, body.order && named(body.order), body.sampler, body.steps && `${body.steps} steps`].filter(Boolean).join(" · ");
    const make = (request, kept) => unmask.newRun(titleOf(request), request, kept);
    const run = () => attempt(() => [make(unmask.writeRequest(form, modelOf(form.model)))]);
    const rewrite = () => {
      const span = form.selection.map((end) => [...form.text.slice(0, end)].length);
      attempt(() => [make(unmask.editRequest(form, modelOf(form.model), [span]))]);
    };
    const compare = () => attempt(() => form.compare.map((rival) => {
      const [kind, name] = [rival.split(" ")[0], rival.slice(rival.indexOf(" ") + 1)];
      const choice = kind === "order" ? { ...form, order: name, sampler: "" } : form;
      return make(unmask.writeRequest(choice, modelOf(kind === "order" ? form.model : name)));
    }));
    const writeAgain = (one) => {
      const canvas = unmask.canvasAt(one, state.call), { pins, prompt } = one, model = modelOf(one.request.body.model);
      attempt(() => [make(unmask.rowRequest(form, model, unmask.rowOf(canvas)), { pins, prompt, before: one })]);
    };

    // ---- playing

    useEffect(() => {
      if (!state.playing) return undefined;
      const last = latest(runs), live = runs.some((one) => one.status === "running");
      if (state.call >= last) {
        if (!live) set({ playing: false });
        return undefined;
      }
      if (still()) {
        set({ call: last });
        return undefined;
      }
      const total = Math.max(1, ...runs.map((one) => one.calls));
      const delay = Math.min(Math.max((1000 * SECONDS) / total, FASTEST), SLOWEST) / state.speed;
      const timer = setTimeout(() => set({ call: now.current.call + 1 }), delay);
      return () => clearTimeout(timer);
    });
    const seek = (call) => set({ call: Math.min(Math.max(call, 0), latest(runs)), playing: false });
    const play = () => set({ playing: !state.playing, call: !state.playing && state.call >= latest(runs) ? 0 : state.call });

    // ---- tokens

    async function act(one, position, tool = state.tool) {
      if (tool !== "look") {
        const token = unmask.canvasAt(one, state.call).tokens[position];
        if (token.id !== null) change(one.key, (run) => unmask[tool === "pin" ? "pin" : "mark"](run, position));
        set({ playing: false });
        return;
      }
      const shown = unmask.canvasAt(one, state.call), row = unmask.rowOf(shown, position);
      for (const { key } of runs) change(key, (run) => ({ ...run, selected: key === one.key ? position : null }));
      set({ alternatives: null, playing: false });
      const blank = row.slice(0, position).filter((id) => id === null).length;
      let alternatives;
      try {
        const body = { model: one.request.body.model, tokens: [row], top: ALTERNATIVES, steps: 1 };
        alternatives = { list: (await backend.post("/v1/fill", body)).data[0].alternatives[blank] };
      } catch (error) {
        alternatives = { error: error.message };
      }
      if (now.current.runs.find((run) => run.key === one.key)?.selected === position) set({ alternatives });
    }

    // ---- scores

    /* A score is refined until its error is small or that takes too long. */
    async function score(text, model) {
      const key = `${Date.now()} ${state.scores.length}`;
      const put = (fields) => set(({ scores }) => ({ scores: scores.map((one) => (one.key === key ? { ...one, ...fields } : one)) }));
      set({ scores: [...state.scores, { key, text, model }] });
      try {
        let found, error = Infinity, seconds = 0;
        while (error > PRECISION && seconds < PATIENCE) {
          const start = performance.now(), precision = Math.max(PRECISION, Math.min(error / 2, COARSE));
          found = (await backend.post("/v1/score", { model, text, precision })).data[0];
          error = found.bits_per_token.monte_carlo_error ?? 0;
          seconds = (performance.now() - start) / 1000;
          put({ bits: found.bits_per_char, perplexity: found.perplexity, tokens: found.tokens, exact: found.exact });
        }
        set({ said: `${found.bits_per_char.value.toFixed(3)} bits per character.` });
      } catch (error) {
        put({ error: error.message });
      }
    }

    // ---- view

    const running = runs.some((one) => one.status === "running");
    return html`
      <a class="skip" href="#result">Skip to the canvas</a>
      <header><h1>unmask</h1><p class="quiet">Watch a masked diffusion model write, and steer it.</p></header>
      <p class="visually-hidden" role="status" aria-live="polite" id="said">${state.said}</p>
      ${state.failure && html`<${Failure} error=${state.failure} backend=${backend} onRetry=${loadModels} />`}
      ${models && html`
        <main>
          <${Form} form=${form} models=${models} features=${backend.features} running=${running} onChange=${changeForm}
            onRun=${run} onStop=${stop} onRewrite=${rewrite} onCompare=${compare} onScore=${() => score(form.text, form.model)} />
          <div class="results" id="result" tabindex="-1">
            ${state.problem && html`<p class="card error" role="alert">${state.problem}</p>`}
            <${Result} state=${state} running=${running} features=${backend.features} eosOf=${eosOf} set=${set} change=${change}
              onSeek=${seek} onPlay=${play} onAct=${act} onAgain=${writeAgain} onScore=${score} onUndo=${(one) => set({ runs: [one.before], call: latest([one.before]) })} />
            <${Scores} scores=${state.scores} onClear=${() => set({ scores: [] })} />
            ${runs.length > 0 && html`<${Code} runs=${runs} root=${root} maskOf=${(one) => modelOf(one.request.body.model).unmask.mask_token_id} />`}
          </div>
        </main>`}
      ${!models && !state.failure && html`<p class="card quiet">Loading the model…</p>`}`;
  }

  function Failure({ error, backend, onRetry }) {
    const [key, type] = useState("");
    const retry = (event) => {
      event.preventDefault();
      backend.useKey?.(key);
      onRetry();
    };
    return html`
      <form class="card" onSubmit=${retry}>
        <p class="error" role="alert">${error.message}</p>
        <div class="row">
          ${error.code === 401 && html`<label class="inline">API key
            <input type="password" autocomplete="off" value=${key} onInput=${(event) => type(event.target.value)} /></label>`}
          <button type="submit" class="primary">Try again</button>
        </div>
      </form>`;
  }

  function Result({ state, running, features, eosOf, set, change, onSeek, onPlay, onAct, onAgain, onScore, onUndo }) {
    const { runs, call, tool, numbers } = state;
    if (!runs.length) {
      return html`<section class="card empty">
        <p class="ghost" aria-hidden="true">${["Once", "upon", "a", "", "", "there", "", "", "", "named", ""].map((word) => (word ? `${word} ` : html`<i></i> `))}</p>
        <p class="quiet">Press Run. The text appears token by token, in the order the model chooses.</p>
      </section>`;
    }
    const shown = runs.filter((one) => one.frames.length), finished = shown.length > 0 && !running;
    return html`
      <section class="card" aria-label="Canvas">
        ${shown.length > 0 && html`
          <${Timeline} runs=${shown} call=${call} playing=${state.playing} speed=${state.speed} onSeek=${onSeek} onPlay=${onPlay}
            onSpeed=${(speed) => set({ speed })} />
          <div class="row tools">
            <div class="segmented" role="radiogroup" aria-label="A click on a token">
              <span class="quiet" aria-hidden="true">A click</span>
              ${Object.entries(TOOLS).map(([one, name]) => html`
                <label><input type="radio" name="tool" checked=${tool === one} onChange=${() => set({ tool: one })} /><span>${name}</span></label>`)}
            </div>
            <span class="grow"></span>
            <label class="inline"><input type="checkbox" checked=${numbers} onChange=${() => set({ numbers: !numbers })} /> Numbers</label>
          </div>`}
        <div class=${`runs ${runs.length > 1 ? "several" : ""} ${numbers ? "numbers" : ""}`}>
          ${runs.map((one) => html`<${Run} key=${one.key} run=${one} alone=${runs.length === 1} call=${call} eos=${eosOf(one)} features=${features}
            finished=${finished} alternatives=${state.alternatives} change=${change} onAct=${onAct} onAgain=${onAgain} onScore=${onScore} onUndo=${onUndo} />`)}
        </div>
        ${shown.length > 0 && html`<${Legend} />`}
      </section>`;
  }

  function Run({ run, alone, call, eos, features, finished, alternatives, change, onAct, onAgain, onScore, onUndo }) {
    const canvas = unmask.canvasAt(run, call), own = (step) => change(run.key, step);
    const notes = { running: "writing", stopped: "stopped", error: "failed", done: "finished" };
    const place = canvas && `call ${Math.min(call, run.calls)} of ${run.calls}`;
    const masks = canvas ? unmask.rowOf(canvas).filter((id) => id === null).length : 0, touched = run.pins.size + run.marks.size + run.chosen.size;
    return html`
      <article aria-label=${run.title}>
        <div class="row head"><h2>${run.title}</h2><span class="quiet">${[notes[run.status], !alone && place].filter(Boolean).join(" · ")}</span></div>
        ${run.error && html`<p class="error" role="alert">${run.error}</p>`}
        ${canvas && html`
          <${Canvas} run=${run} canvas=${canvas} call=${call} eos=${eos} label=${`Canvas of ${run.title}`} onAct=${(position, tool) => onAct(run, position, tool)} />
          ${run.selected !== null && canvas.tokens[run.selected] && html`
            <${TokenPanel} run=${run} canvas=${canvas} alternatives=${alternatives} onPin=${() => own((one) => unmask.pin(one, run.selected))}
              onMark=${() => own((one) => unmask.mark(one, run.selected))} onClose=${() => own((one) => ({ ...one, selected: null }))}
              onChoose=${(token) => own((one) => unmask.choose(one, run.selected, token, call))} />`}
          <div class="row tight actions">
            <button type="button" disabled=${!finished || !run.pins.size} onClick=${() => own((one) => unmask.markOthers(one, canvas))}>Mask all but pinned</button>
            <button type="button" class=${masks && finished ? "primary" : ""} disabled=${!finished || !masks} onClick=${() => onAgain(run)}>
              ${masks === 1 ? "Write 1 mask" : masks ? `Write ${masks} masks` : "Write the masks"}
            </button>
            ${touched > 0 && html`<button type="button" onClick=${() => own(unmask.unedited)}>Clear marks</button>`}
            ${run.before && html`<button type="button" disabled=${!finished} onClick=${() => onUndo(run)}>Back</button>`}
            ${features.score && html`<button type="button" disabled=${masks > 0} onClick=${() => onScore(unmask.textOf(canvas, eos), run.request.body.model)}>Score this text</button>`}
          </div>`}
      </article>`;
  }

  const Legend = () => html`
    <div class="legend">
      <span>Confidence</span><span>0</span><i aria-hidden="true"></i><span>100</span>
      <span class="quiet keys">On a token: arrow keys move, Enter acts, P pins, M masks.</span>
    </div>`;

  const backend = unmask.backend ?? unmask.httpBackend("");
  render(html`<${App} backend=${backend} root=${unmask.backend ? "" : location.origin} />`, document.getElementById("app"));
})();
