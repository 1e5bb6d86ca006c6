/* The canvas of a run, token by token, and the timeline of its network calls. */
"use strict";

(() => {
  const { html, useLayoutEffect, useRef, useState } = htmPreact;
  const SCALE = ["#c8385a", "#d9951a", "#42a01c", "#128c94"];
  const UNKNOWN_SHAPE = "word";

  /* The colour of a confidence in [0, 1], as in the figures of the package. */
  function colour(confidence) {
    const place = Math.min(Math.max(confidence, 0), 1) * (SCALE.length - 1);
    const left = Math.min(Math.floor(place), SCALE.length - 2);
    const share = Math.round((place - left) * 100);
    return `color-mix(in srgb, ${SCALE[left + 1]} ${share}%, ${SCALE[left]})`;
  }

  const percent = (confidence) => Math.round(confidence * 100);
  /* Three digits do not fit below a single letter; a full bar says 100 there. */
  const shortPercent = (token, text) => (percent(token.confidence) === 100 && text.length < 2 ? "" : percent(token.confidence));
  const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  const spoken = (text) => visible(text).trim() || "space";

  /* "cat, 83 percent, call 3": what a screen reader says of a token. */
  function describe(token, position, run, ends) {
    const marks = run.pins.has(position) ? ", pinned" : "";
    if (token.marked) return `${spoken(token.text)}, will be written again`;
    if (token.id === null) return `masked, position ${position + 1}`;
    const name = ends ? "end of the text" : spoken(token.text);
    return token.confidence === null
      ? `${name}, given${marks}`
      : `${name}, ${percent(token.confidence)} percent, call ${token.call}${marks}`;
  }

  /* A token is the space before it, a chip, and the line breaks in it. */
  function Token({ token, position, run, shape, ends, fresh, tabbable }) {
    const masked = token.id === null, written = !masked && token.confidence !== null;
    const text = masked ? shape : ends ? "end" : token.text;
    const [, space, rest] = /^( *)(.*)$/s.exec(text), letters = visible(rest) || "·", covered = masked || token.marked;
    const kinds = ["token", covered ? "masked" : written ? "written" : "given", ends && "ends"];
    kinds.push(token.marked && "marked", fresh && "fresh", run.pins.has(position) && "pinned");
    kinds.push(run.selected === position && "selected");
    const style = written && !token.marked ? { "--colour": colour(token.confidence), "--p": token.confidence } : {};
    return html`${ends || (masked && shape === UNKNOWN_SHAPE) ? " " : space}<span
        class=${kinds.filter(Boolean).join(" ")} style=${style} role="button" tabindex=${tabbable ? 0 : -1}
        data-position=${position} aria-label=${describe(token, position, run, ends)}
        aria-pressed=${run.pins.has(position)}
        data-percent=${written && !token.marked ? shortPercent(token, rest) : undefined}
        data-shape=${covered ? letters : undefined}>${covered ? "" : letters}</span
      >${[...(masked ? "" : token.text)].filter((letter) => letter === "\n").map(() => html`<br />`)}`;
  }

  function Canvas({ run, canvas, call, eos, label, onAct }) {
    const [focused, focus] = useState(0);
    const box = useRef(null), moved = useRef(false);
    const tokens = canvas.tokens.slice(0, unmask.shownPositions(canvas.tokens, eos));
    const last = run.frames.at(-1).tokens, at = Math.min(focused, tokens.length - 1);
    useLayoutEffect(() => {
      if (moved.current) box.current.querySelector(`[data-position="${at}"]`)?.focus();
      moved.current = false;
    });
    const go = (position) => {
      moved.current = true;
      focus(Math.min(Math.max(position, 0), tokens.length - 1));
    };
    const positionOf = (event) => Number(event.target.closest("[data-position]")?.dataset.position ?? -1);
    const keys = {
      ArrowRight: () => go(at + 1), ArrowLeft: () => go(at - 1), Home: () => go(0), End: () => go(tokens.length - 1),
      ArrowDown: () => go(lineStep(box.current, at, 1)), ArrowUp: () => go(lineStep(box.current, at, -1)),
      Enter: () => onAct(at), " ": () => onAct(at), p: () => onAct(at, "pin"), m: () => onAct(at, "mask"),
    };
    const onKeyDown = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key] || positionOf(event) < 0) return;
      event.preventDefault();
      keys[event.key]();
    };
    const onClick = (event) => {
      const position = positionOf(event);
      if (position < 0) return;
      focus(position);
      onAct(position);
    };
    const hidden = canvas.tokens.length - tokens.length;
    return html`
      <div class="canvas" role="group" aria-label=${label} ref=${box} onKeyDown=${onKeyDown} onClick=${onClick}>
        ${tokens.map((token, position) => {
          const final = last[position]?.id === eos ? null : last[position]?.text;
          const ends = token.id !== null && token.id === eos, fresh = token.call === call && call < run.calls;
          return html`<${Token} key=${position} token=${token} position=${position} run=${run} ends=${ends} fresh=${fresh}
            shape=${final || UNKNOWN_SHAPE} tabbable=${position === at} />`;
        })}
      </div>
      ${hidden > 0 && html`<p class="quiet">The text ends here; ${hidden} more positions follow its end.</p>`}`;
  }

  /* The token in the line above or below, nearest to the middle of token `at`. */
  function lineStep(box, at, direction) {
    const middle = (node) => node.getBoundingClientRect().left + node.getBoundingClientRect().width / 2;
    const nodes = [...box.querySelectorAll("[data-position]")], here = nodes[at], top = here.getBoundingClientRect().top;
    const beyond = nodes.filter((node) => direction * (node.getBoundingClientRect().top - top) > 4);
    if (!beyond.length) return at;
    const lines = beyond.map((node) => direction * node.getBoundingClientRect().top), line = Math.min(...lines);
    const near = beyond.filter((_, index) => lines[index] < line + 4);
    const distance = (node) => Math.abs(middle(node) - middle(here));
    return Number(near.reduce((best, node) => (distance(node) < distance(best) ? node : best)).dataset.position);
  }

  const PLAY = "M4 2.5v11l9-5.5z", PAUSE = "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z";
  const BACK = "M11 2.5v11L4 8z", FORTH = "M5 2.5v11L12 8z";

  const IconButton = ({ label, path, ...others }) => html`
    <button type="button" class="icon" aria-label=${label} title=${label} ...${others}>
      <svg viewBox="0 0 16 16" aria-hidden="true"><path d=${path} /></svg>
    </button>`;

  function Timeline({ runs, call, playing, speed, onSeek, onPlay, onSpeed }) {
    const total = Math.max(1, ...runs.map((run) => run.calls)), bars = unmask.history(runs[0]);
    const position = runs.length > 1 ? `call ${call}` : `call ${call} of ${runs[0].calls}`;
    return html`
      <div class="timeline">
        <div class="bars" aria-hidden="true">
          ${bars.map((bar) => html`<i class=${bar.call > call ? "later" : bar.call === call ? "now" : ""} style=${{
            "--colour": colour(bar.mean), left: `${(100 * (bar.call - 1)) / total}%`, width: `${100 / total}%`,
            height: `${8 + 92 * bar.mean}%`,
          }}></i>`)}
        </div>
        <input type="range" min="0" max=${total} step="1" value=${call} aria-label="Network call" aria-valuetext=${position}
          style=${{ "--done": `${(100 * call) / total}%` }} onInput=${(event) => onSeek(Number(event.target.value))} />
        <div class="row">
          <${IconButton} label="Previous call" path=${BACK} disabled=${call === 0} onClick=${() => onSeek(call - 1)} />
          <${IconButton} label=${playing ? "Pause" : "Play"} path=${playing ? PAUSE : PLAY} onClick=${onPlay} />
          <${IconButton} label="Next call" path=${FORTH} disabled=${call >= total} onClick=${() => onSeek(call + 1)} />
          <output class="where">${position}</output>
          <label class="inline" for="speed"><span>Speed</span>
            <select id="speed" aria-label="Speed" value=${speed} onChange=${(event) => onSpeed(Number(event.target.value))}>
              ${[0.25, 0.5, 1, 2, 4].map((one) => html`<option value=${one}>${one}×</option>`)}
            </select>
          </label>
        </div>
      </div>`;
  }

  Object.assign(unmask, { Canvas, Timeline, colour, percent, visible, spoken });
})();
