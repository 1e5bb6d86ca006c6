/* The form: a text, what to do with it, and how it is written. */
"use strict";

(() => {
  const { html, useEffect, useRef } = htmPreact;
  const EXAMPLES = [
    ["A beginning", "Once upon a time"],
    ["Blanks", "One day, a little [MASK] named Tim found a [MASK:2] in the garden."],
    ["A beginning and an end", "Lily had a red balloon.[MASK:40] They all lived happily ever after."],
  ];
  const CONSTRAINTS = { "": "None", regex: "Regular expression", words: "Words", schema: "JSON schema" };
  const HINTS = {
    regex: ["The whole text matches", "Once upon a time[a-z ,]+[.]"],
    words: ["Words in the text, separated by commas", "dragon, castle"],
    schema: ["The text is JSON of this schema", '{"type": "object", "properties": {"name": {"type": "string"}}}'],
  };
  const CALL_IT = { left_to_right: "left to right", entropy_bounded: "entropy bounded" };
  const named = (name) => CALL_IT[name] ?? name;

  /* A label above its control. */
  function Field({ label, children, wide }) {
    const id = `field-${label.toLowerCase().replace(/\W+/g, "-")}`;
    children.props.id = id;
    return html`<div class=${wide ? "field wide" : "field"}><label for=${id}>${label}</label>${children}</div>`;
  }

  function Select({ value, options, onChange, ...others }) {
    return html`<select value=${value} onChange=${(event) => onChange(event.target.value)} ...${others}>
      ${options.map(([one, name]) => html`<option value=${one} selected=${one === value}>${name}</option>`)}
    </select>`;
  }

  function Form({ form, models, features, running, onChange, onRun, onStop, onRewrite, onScore, onCompare }) {
    const area = useRef(null), caret = useRef(null);
    const model = models.find((one) => one.id === form.model) ?? models[0], { blanks } = unmask.intention(form.text);
    const causal = model.unmask.causal, set = (name) => (value) => onChange({ [name]: value });
    const selected = form.selection[1] > form.selection[0];
    useEffect(() => {
      if (caret.current === null) return;
      area.current.setSelectionRange(caret.current, caret.current);
      area.current.focus();
      caret.current = null;
    });
    const remember = (event) => {
      const { selectionStart, selectionEnd } = event.target;
      if (form.selection[0] !== selectionStart || form.selection[1] !== selectionEnd) {
        onChange({ selection: [selectionStart, selectionEnd] });
      }
    };
    const insertBlank = () => {
      const [start, end] = form.selection;
      caret.current = start + "[MASK]".length;
      onChange({ text: `${form.text.slice(0, start)}[MASK]${form.text.slice(end)}`, selection: [caret.current, caret.current] });
    };
    const input = (name, attributes) => html`<input type="number" value=${form[name]}
      onInput=${(event) => onChange({ [name]: event.target.value })} ...${attributes} />`;
    const others = models.filter((one) => one.id !== model.id);
    const rivals = [...model.unmask.orders.map((one) => [`order ${one}`, named(one)]), ...others.map((one) => [`model ${one.id}`, one.id])];
    const toggle = (one) => onChange({ compare: form.compare.includes(one) ? form.compare.filter((other) => other !== one) : [...form.compare, one] });
    const verb = blanks ? (blanks === 1 ? "Fill the blank" : `Fill ${blanks} blanks`) : form.text ? "Continue the text" : "Write a text";
    return html`
      <form class="card" novalidate onSubmit=${(event) => { event.preventDefault(); onRun(); }}>
        <div class="field"><label for="text">Text</label></div>
        <textarea id="text" ref=${area} rows="5" spellcheck="false" value=${form.text} aria-describedby="text-help"
          onInput=${(event) => onChange({ text: event.target.value })} onSelect=${remember} onKeyUp=${remember} onMouseUp=${remember}
          onKeyDown=${(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && (event.preventDefault(), onRun())}></textarea>
        <p class="quiet" id="text-help">
          <code>[MASK]</code> is a blank of one token, <code>[MASK:5]</code> of five. A text without blanks is continued.
          Select words to rewrite them.
        </p>
        <div class="row">
          ${running
            ? html`<button key="stop" type="button" class="primary" onClick=${onStop}>Stop</button>`
            : html`<button key="run" type="submit" class="primary" title="Ctrl+Enter">Run</button>`}
          <span class="quiet">${verb}</span>
          <span class="grow"></span>
        </div>
        <div class="row tight">
          <button type="button" onClick=${insertBlank}>Add a blank</button>
          <button type="button" disabled=${!selected || causal || running} onClick=${onRewrite}>Rewrite selection</button>
          ${features.score && html`<button type="button" disabled=${!form.text || blanks > 0} onClick=${onScore}>Score</button>`}
        </div>
        <div class="row tight examples"><span class="quiet">Try</span>
          ${EXAMPLES.map(([name, text]) => html`<button type="button" class="link" onClick=${() => onChange({ text, selection: [0, 0] })}>${name}</button>`)}
        </div>
        <details open=${form.open} onToggle=${(event) => onChange({ open: event.target.open })}>
          <summary>How it is written</summary>
          <div class="grid">
          <${Field} label="Model" wide><${Select} value=${model.id} onChange=${set("model")} options=${models.map((one) => [one.id, one.id])} /></${Field}>
          <${Field} label="New tokens">${input("length", { min: 1, max: model.unmask.length, disabled: blanks > 0 })}</${Field}>
          <${Field} label="Steps">${input("steps", { min: 1, placeholder: "default", disabled: causal })}</${Field}>
          <${Field} label="Order">
            <${Select} value=${form.order} disabled=${causal} onChange=${(order) => onChange({ order, sampler: "" })}
              options=${[["", "default"], ...model.unmask.orders.map((one) => [one, named(one)])]} />
          </${Field}>
          <${Field} label="Sampler">
            <${Select} value=${form.sampler} disabled=${causal} onChange=${(sampler) => onChange({ sampler, order: "" })}
              options=${[["", "default"], ...model.unmask.samplers.map((one) => [one, one])]} />
          </${Field}>
          <${Field} label="Temperature">${input("temperature", { min: 0, step: "any", placeholder: "default" })}</${Field}>
          <${Field} label="Top-p">${input("topP", { min: 0, max: 1, step: "any", placeholder: "default" })}</${Field}>
          <div class="field wide">
            <label for="seed">Seed</label>
            <div class="row tight">
              <input id="seed" type="number" class="grow" value=${form.seed} onInput=${(event) => onChange({ seed: event.target.value })} />
              <button type="button" onClick=${() => onChange({ seed: String(Math.floor(Math.random() * 1e6)) })}>New seed</button>
            </div>
          </div>
          ${features.constraints && html`
            <${Field} label="Constraint" wide><${Select} value=${form.constraintKind} onChange=${set("constraintKind")} options=${Object.entries(CONSTRAINTS)} /></${Field}>`}
          ${form.constraintKind && html`
            <${Field} label=${HINTS[form.constraintKind][0]} wide>
              <textarea rows="2" spellcheck="false" value=${form.constraintText} placeholder=${HINTS[form.constraintKind][1]}
                onInput=${(event) => onChange({ constraintText: event.target.value })}></textarea>
            </${Field}>`}
          </div>
        </details>
        <details open=${form.compareOpen} onToggle=${(event) => onChange({ compareOpen: event.target.open })}>
          <summary>Compare side by side</summary>
          <div class="choices" role="group" aria-label="What is compared">
            ${rivals.map(([one, name]) => html`<label><input type="checkbox" checked=${form.compare.includes(one)} onChange=${() => toggle(one)} /><span>${name}</span></label>`)}
          </div>
          <button type="button" disabled=${!form.compare.length || running} onClick=${onCompare}>Compare</button>
        </details>
      </form>`;
  }

  Object.assign(unmask, { Form, named });
})();
