package fromtext

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"cascadekv/internal/trace"
)

const example = `write records like {"id": "a", "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]} (ShareGPT) ` +
	`or {"system_prompt": "", "question": "Why?", "response": "So."} (OpenOrca), in a list or one a line`

// record is one conversation of ShareGPT, or one question of OpenOrca.
type record struct {
	ID            json.RawMessage `json:"id"`
	Conversations []message       `json:"conversations"`
	System        string          `json:"system_prompt"`
	Question      *string         `json:"question"`
	Response      string          `json:"response"`
}

type message struct {
	From  string `json:"from"`
	Value string `json:"value"`
}

// answers are the names that data sets have for the model.
var answers = []string{"gpt", "assistant", "chatgpt", "bing", "bard", "model"}

// text reads records from JSON: a list, or one after the other.
type text struct {
	name  string
	lines *lineCounter
	in    *json.Decoder
	list  bool
	ended bool // the list is at its end
	read  int
}

// newText begins to read r, compressed by gzip or not; name stands for it in
// errors, which are of type *trace.LineError.
func newText(r io.Reader, name string) (*text, error) {
	in, err := trace.Text(r, name)
	if err != nil {
		return nil, err
	}
	t := &text{name: name, lines: &lineCounter{in: in}}
	t.in = json.NewDecoder(t.lines)
	for {
		start, err := in.Peek(1)
		if err == nil && strings.ContainsAny(string(start), " \t\r\n") {
			b, _ := in.ReadByte() // it was peeked at
			t.lines.skipped(b)
			continue
		}
		if t.list = err == nil && start[0] == '['; t.list {
			_, err = t.in.Token()
			if err != nil {
				return nil, t.fault(err)
			}
		}
		return t, nil
	}
}

// next returns the next record, io.EOF behind the last.
func (t *text) next() (record, error) {
	var r record
	if t.ended {
		return r, io.EOF
	}
	if t.list && !t.in.More() {
		_, err := t.in.Token() // the end of the list, or what is there instead
		if t.ended = err == nil; t.ended {
			return r, io.EOF
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return r, t.fault(err)
	}
	t.read++
	if err := t.in.Decode(&r); err != nil {
		return r, t.fault(err)
	}
	t.lines.passed(t.in.InputOffset())
	if r.Conversations == nil && r.Question == nil {
		return r, &trace.LineError{File: t.name, Line: t.lines.line(t.in.InputOffset()), Remedy: example,
			Problem: fmt.Sprintf("record %d has neither conversations nor a question", t.read)}
	}
	return r, nil
}

// fault says where reading failed and why. io.EOF stays as it is.
func (t *text) fault(err error) error {
	if err == io.EOF {
		return err
	}
	wrong := &trace.LineError{File: t.name, Err: err, Remedy: example}
	at := t.in.InputOffset()
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		wrong.Problem = fmt.Sprintf("record %d: %v", t.read, syntax)
		at = max(t.start(at), syntax.Offset)
	} else if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		what := "it"
		if kind.Field != "" {
			what = kind.Field
		}
		wrong.Problem = fmt.Sprintf("record %d: %s is a %s, want %s", t.read, what, kind.Value, plainKind(kind))
	} else if isDamage(err) {
		wrong.Problem = fmt.Sprintf("record %d: the file ends too soon or is damaged (%v)", t.read, err)
		wrong.Remedy = "copy or download the file again"
		at = t.lines.offset
	} else {
		return fmt.Errorf("fromtext: %s: %w", t.name, err)
	}
	wrong.Line = t.lines.line(at)
	return wrong
}

// start is the offset behind the first byte of the record that follows offset.
func (t *text) start(offset int64) int64 {
	rest, _ := io.ReadAll(t.in.Buffered()) // memory has no errors
	return offset + int64(len(rest)-len(bytes.TrimLeft(rest, ", \t\r\n"))) + 1
}

// isDamage distinguishes a damaged file from a failure to read it.
func isDamage(err error) bool {
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	return corrupt || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader)
}

func plainKind(err *json.UnmarshalTypeError) string {
	switch err.Type.Kind().String() {
	case "string":
		return "text"
	case "slice":
		return "a list"
	}
	return "an object"
}

// messages returns the conversation, of either form.
func (r *record) messages() []message {
	if r.Question == nil {
		return r.Conversations
	}
	all := []message{{"human", *r.Question}, {"gpt", r.Response}}
	if r.System != "" {
		all = append([]message{{"system", r.System}}, all...)
	}
	return all
}

// name is the record's id, or its number where it has none.
func (r *record) name(number int) string {
	var text string
	switch id := bytes.TrimSpace(r.ID); {
	case len(id) == 0 || string(id) == "null":
		return fmt.Sprintf("r%d", number)
	case json.Unmarshal(id, &text) == nil && text != "":
		return text
	default:
		return string(id)
	}
}

// session makes the requests of a conversation. Text that no answer follows
// makes none.
func (o *Options) session(r *record, number int) *session {
	c := chain{o: o}
	s := &session{name: r.name(number)}
	shared, leading := 0, true
	for _, m := range r.messages() {
		if slices.Contains(answers, m.From) && c.chars > 0 {
			s.turns = append(s.turns, c.turn(m.Value, shared))
		}
		leading = leading && m.From == "system"
		c.write(m.From + "\n")
		c.write(m.Value)
		c.write("\n")
		if leading {
			shared = len(c.sealed)
		}
	}
	s.blocks = c.sealed
	return s
}

// lineCounter counts the lines of what a decoder reads. It keeps the ends of
// lines behind what was passed.
type lineCounter struct {
	in     *bufio.Reader
	offset int64 // of the next byte to be read, from the start of the decoder's input
	before int   // line ends passed
	ends   []int64
}

func (l *lineCounter) skipped(b byte) {
	if b == '\n' {
		l.before++
	}
}

// Read implements io.Reader.
func (l *lineCounter) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	for i, b := range p[:n] {
		if b == '\n' {
			l.ends = append(l.ends, l.offset+int64(i))
		}
	}
	l.offset += int64(n)
	return n, err
}

// passed forgets the line ends before offset.
func (l *lineCounter) passed(offset int64) {
	n := l.count(offset)
	l.before += n
	l.ends = slices.Delete(l.ends, 0, n)
}

func (l *lineCounter) count(offset int64) int {
	n, _ := slices.BinarySearch(l.ends, offset)
	return n
}

// line is the number, from 1, of the line that has the byte before offset.
func (l *lineCounter) line(offset int64) int {
	return 1 + l.before + l.count(max(0, offset-1))
}
