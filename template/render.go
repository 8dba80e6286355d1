package template

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	texttemplate "text/template"
	"time"

	"github.com/BurntSushi/toml"
	"go.yaml.in/yaml/v2"

	"github.com/zkagent/zkagent/view"
)

// state is one instance of a template: what its functions share. It executes one view at
// a time. But for stop it is touched by the executing goroutine alone.
type state struct {
	t    *Template
	tmpl interface {
		ExecuteTemplate(w io.Writer, name string, data any) error
	}
	view    *view.View
	depth   int
	texts   int // bytes that functions have made
	large   int // of them, in large texts
	last    int // place of the latest guard, -1 before
	scratch *Scratch
	reads   []read   // what was read, to keep it out of errors
	out     *limited // what is written to now
	memo    *memo    // of the execution before
	printed map[pieceID]piece
	stop    atomic.Pointer[error]
}

func (t *Template) newState() (*state, error) {
	st := &state{t: t}
	funcs := st.functions()
	maps.Copy(funcs, texttemplate.FuncMap{
		guardFunc: st.guard, enterFunc: st.enter, leaveFunc: st.leave, directFunc: st.printFields, chunksFunc: st.printChunks, coverFunc: st.cover,
	})
	root := t.newTemplate(funcs)
	for _, tree := range slices.Concat(t.sortedTrees(), t.bodies) {
		if _, err := root.AddParseTree(tree.Name, tree); err != nil {
			return nil, fmt.Errorf("add template %s: %w", tree.Name, err)
		}
	}
	st.tmpl = root
	return st, nil
}

// functions are those that the template calls, and those of text/template itself that make
// texts, with the bounds of ours. A format such as "%999999d" that comes from data could
// otherwise make any amount of text in one call.
func (st *state) functions() texttemplate.FuncMap {
	limit := func(fn func(...any) string) any { return bounded(fn)(st) }
	funcs := texttemplate.FuncMap{
		"print": limit(fmt.Sprint), "println": limit(fmt.Sprintln),
		"html": limit(texttemplate.HTMLEscaper), "js": limit(texttemplate.JSEscaper), "urlquery": limit(texttemplate.URLQueryEscaper),
		"printf": func(format string, args ...any) string {
			short2(formatWidth(format, args))
			return st.spend(fmt.Sprintf(format, args...))
		},
	}
	table := functionTable()
	for _, name := range st.t.names {
		if f, ok := table[name]; ok {
			funcs[name] = f.make(st)
		}
	}
	return funcs
}

func (t *Template) newTemplate(funcs texttemplate.FuncMap) *texttemplate.Template {
	missing := "missingkey=zero"
	if !t.cfg.MissingKeyOK {
		missing = "missingkey=error"
	}
	return texttemplate.New(t.cfg.Name).Funcs(funcs).Option(missing)
}

type result struct {
	data []byte
	err  error
}

// Render executes the template for a view, and for one element of a for_each (nil
// without). Errors are of type *Error and never contain a value. Do not change the
// bytes: the next Render copies parts of them.
//
// The execution runs in a separate goroutine, and Render waits for it. If one function
// call does not end within the time limit, Render leaves the goroutine behind. That
// happens at most once per template: the template renders nothing until that goroutine
// ends.
func (t *Template) Render(ctx context.Context, v *view.View, each *Each) ([]byte, error) {
	if err := each.empty(t.elses.each); err != nil {
		return nil, &Error{Template: t.cfg.Name, Err: err}
	}
	st, err := t.take()
	if err != nil {
		return nil, err
	}
	st.begin(v)
	done := make(chan result, 1) // Buffered: an abandoned execution still ends.
	go func() {
		r := st.run(each)
		if r.err == nil {
			if cap(r.data) > len(r.data)+len(r.data)/8+512 {
				r.data = bytes.Clone(r.data) // It may be kept for long.
			}
			t.size.Store(int64(len(r.data)))
			var m *memo
			if len(st.printed) > 0 {
				m = &memo{r.data, st.printed}
			}
			t.memo.Store(m)
		}
		t.give(st)
		done <- r
	}()
	data, err := t.wait(ctx, st, done)
	if err != nil {
		return nil, err
	}
	if t.check != nil {
		if err := t.check(data); err != nil {
			return nil, &Error{Template: t.cfg.Name, Err: fmt.Errorf("%w as %s: %s", ErrSyntax, t.cfg.Syntax, t.redactPlain(err.Error()))}
		}
	}
	return data, nil
}

// take returns an idle state, or a new one while all are in use.
func (t *Template) take() (*state, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.abandoned.Load() >= maxAbandoned {
		return nil, &Error{Template: t.cfg.Name, Err: fmt.Errorf("%w: a previous execution has still not ended", ErrTimeout)}
	}
	if n := len(t.free); n > 0 {
		st := t.free[n-1]
		t.free = t.free[:n-1]
		return st, nil
	}
	return t.newState()
}

func (t *Template) give(st *state) {
	clear(st.reads)
	st.view, st.scratch, st.reads = nil, nil, st.reads[:0]
	st.out, st.memo, st.printed = nil, nil, nil
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.free) < 2 {
		t.free = append(t.free, st)
	}
}

// wait waits for the end of an execution; the limit of time and ctx ask it to
// end, and a second limit after that gives it up.
func (t *Template) wait(ctx context.Context, st *state, done chan result) ([]byte, error) {
	limit := time.NewTimer(t.cfg.Timeout)
	defer limit.Stop()
	var reason error
	select {
	case r := <-done:
		return r.data, r.err
	case <-ctx.Done():
		reason = context.Cause(ctx)
	case <-limit.C:
		reason = fmt.Errorf("%w (limit %s)", ErrTimeout, t.cfg.Timeout)
	}
	st.stop.Store(&reason)
	limit.Reset(t.grace)
	select {
	case r := <-done:
		if r.err == nil {
			r.err = &Error{Template: t.cfg.Name, Err: reason}
		}
		return nil, r.err
	case <-limit.C:
	}
	t.abandoned.Add(1)
	go func() {
		<-done
		t.abandoned.Add(-1)
	}()
	return nil, &Error{Template: t.cfg.Name, Err: fmt.Errorf("%w: it is inside one function call", reason)}
}

func (st *state) begin(v *view.View) {
	if v == nil {
		v = &view.View{}
	}
	st.view = v
	st.stop.Store(nil)
	st.texts, st.large = 0, 0
	st.depth, st.last, st.scratch, st.reads = 0, -1, nil, st.reads[:0]
	st.memo, st.printed = cmp.Or(st.t.memo.Load(), &memo{}), map[pieceID]piece{}
}

// run executes and returns the text, or an error without secrets.
func (st *state) run(each *Each) result {
	var out bytes.Buffer
	var dot any
	if each != nil {
		dot = map[string]any{"Key": each.Key, "Value": each.Value}
	}
	if last := int(st.t.size.Load()); last > 0 {
		out.Grow(last + last/64 + 64) // Outputs of one template are alike.
	}
	st.out = &limited{st: st, buf: &out, max: st.t.cfg.MaxOutput, root: true}
	if err := st.execute(dot); err != nil {
		return result{err: st.explain(err)}
	}
	return result{data: out.Bytes()}
}

// execute makes an error of a panic: a bug of text/template or of ours must
// not end the agent.
func (st *state) execute(dot any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return st.tmpl.ExecuteTemplate(st.out, st.t.cfg.Name, dot)
}

// limited is the writer of an execution: it bounds the output and ends an
// execution that was asked to end.
type limited struct {
	st   *state
	buf  *bytes.Buffer
	max  int64
	root bool // what is written is the output itself
}

func (w *limited) Write(p []byte) (int, error) {
	if err := w.ended(len(p)); err != nil {
		return 0, err
	}
	return w.buf.Write(p)
}

// ended says why nothing more may be written; nil while it may.
func (w *limited) ended(more int) error {
	if reason := w.st.stop.Load(); reason != nil {
		return *reason
	}
	if int64(w.buf.Len()+more) > w.max {
		return fmt.Errorf("output is %w: more than %d bytes", ErrTooLarge, w.max)
	}
	return nil
}

func (st *state) guard(at int) (string, error) {
	st.last = at
	if reason := st.stop.Load(); reason != nil {
		return "", &valueError{text: (*reason).Error(), class: *reason, pos: at}
	}
	return "", nil
}

func (st *state) enter(at int) (string, error) {
	st.depth++
	if st.depth > MaxDepth {
		text := fmt.Sprintf("%v: more than %d", ErrDepth, MaxDepth)
		return "", &valueError{text: text, class: ErrDepth, pos: at}
	}
	return st.guard(at)
}

func (st *state) leave(int) string {
	st.depth--
	return ""
}

// syntaxes are the parsers of rendered bytes that this package brings.
var syntaxes = map[string]func([]byte) error{
	"json": checkJSON,
	"yaml": checkYAML,
	"toml": func(b []byte) error {
		if err := checkKeys(string(b)); err != nil {
			return err
		}
		return toml.Unmarshal(b, &map[string]any{})
	},
	"xml": checkXML,
	"ini": checkINI,
}

// Syntaxes returns the names of the syntaxes that this package can check.
func Syntaxes() []string { return slices.Sorted(maps.Keys(syntaxes)) }

func syntaxCheck(name string, more map[string]func([]byte) error) (func([]byte) error, error) {
	if name == "" || name == "none" {
		return nil, nil
	}
	check := more[name]
	if check == nil {
		check = syntaxes[name]
	}
	if check == nil {
		names := slices.Concat(slices.Sorted(maps.Keys(more)), Syntaxes(), []string{"none"})
		return nil, fmt.Errorf("syntax %q does not exist%s", name, meant(name, names))
	}
	return func(b []byte) error {
		if len(b) > maxChecked {
			return fmt.Errorf("%d bytes are %w: a syntax is checked up to %d", len(b), ErrTooLarge, maxChecked)
		}
		if err := CheckNesting(string(b)); err != nil {
			return err
		}
		return check(b)
	}, nil
}

func checkJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	var v json.RawMessage // The values are not needed.
	if err := dec.Decode(&v); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			p := placeOf(string(b), int(syntax.Offset)-1)
			return fmt.Errorf("line %d, column %d: %w", p.line, p.column, err)
		}
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		p := placeOf(string(b), int(dec.InputOffset()))
		return fmt.Errorf("line %d, column %d: there is more after the value", p.line, p.column)
	}
	return nil
}

func checkYAML(b []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	for {
		var v any
		switch err := dec.Decode(&v); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func checkXML(b []byte) error {
	dec := xml.NewDecoder(bytes.NewReader(b))
	depth, elements := 0, 0
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			if depth == 0 {
				elements++
			}
			depth++
		case xml.EndElement:
			depth--
		case xml.CharData:
			if depth == 0 && len(bytes.TrimSpace(tok)) > 0 {
				line, _ := dec.InputPos()
				return fmt.Errorf("line %d: text outside of the element", line)
			}
		}
	}
	if elements != 1 {
		return fmt.Errorf("%d elements at the top, not one", elements)
	}
	return nil
}

// checkINI wants sections, "name = value" or "name: value", comments, and
// lines that continue a value because they are indented.
func checkINI(b []byte) error {
	value := false
	for i, line := range strings.Split(string(b), "\n") {
		text := strings.TrimSpace(line)
		switch {
		case text == "":
			value = false
		case strings.ContainsAny(text[:1], ";#"):
		case value && (line[0] == ' ' || line[0] == '\t'):
		case text[0] == '[':
			section, _, closed := strings.Cut(text[1:], "]")
			if !closed || strings.TrimSpace(section) == "" {
				return fmt.Errorf("line %d: a section is [name]", i+1)
			}
			value = false
		default:
			if at := strings.IndexAny(text, "=:"); at <= 0 {
				return fmt.Errorf("line %d: neither a section nor name = value", i+1)
			}
			value = true
		}
	}
	return nil
}
