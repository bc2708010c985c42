package trace

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unsafe"

	"github.com/tidwall/gjson"
)

// table says where the rows of a CSV form have what is read of them.
type table struct {
	at    [columnCount]int // of each column, -1 if there is none
	width int              // cells of a row
	row   []cell           // reused

	began bool
	start int64 // milliseconds of the first row, by the file's clock
}

// Columns of a CSV form.
const (
	columnTime = iota
	columnInput
	columnOutput
	columnSession // optional
	columnCount
)

// columnNames are those of each form, in lower case.
var columnNames = map[Form][columnCount]string{
	Azure:    {"timestamp", "contexttokens", "generatedtokens"},
	BurstGPT: {"timestamp", "request tokens", "response tokens", "session id"},
}

// headers and rows are as the publishers write them.
var (
	headers = map[Form]string{
		Azure:    "TIMESTAMP,ContextTokens,GeneratedTokens",
		BurstGPT: "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
	}
	rows = map[Form]string{
		Azure:    "2023-11-16 18:17:03.9799600,4808,10",
		BurstGPT: "5,ChatGPT,472,18,490,Conversation log",
	}
)

// clocks are the ways in which Azure's files write time; each takes a fraction
// of a second too.
var clocks = []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05", "2006-01-02T15:04:05Z07:00"}

// newTable reads a header; missing names a column that the form needs and the
// header lacks.
func newTable(f Form, header string) (t *table, missing string) {
	row, _ := split(nil, header)
	t = &table{width: len(row)}
	for i, name := range columnNames[f] {
		t.at[i] = -1
		for j, c := range row {
			if name != "" && strings.ToLower(strings.TrimSpace(c.text)) == name {
				t.at[i] = j
			}
		}
		if t.at[i] < 0 && i != columnSession && missing == "" {
			missing = name
		}
	}
	return t, missing
}

// readHeader reads the header of a CSV form. A file without a line has no
// requests.
func (r *Reader) readHeader() error {
	if !r.o.Form.LengthsOnly() {
		return nil
	}
	for {
		line, err := r.readLine()
		if err != nil {
			r.table, r.ended = &table{}, err
			return nil
		}
		header := strings.TrimSpace(string(line))
		if header == "" {
			continue
		}
		t, missing := newTable(r.o.Form, header)
		if missing != "" {
			return &LineError{File: r.name, Line: r.line, Problem: fmt.Sprintf("the header has no column %q", missing),
				Remedy: "begin the file with " + headers[r.o.Form]}
		}
		r.table = t
		return nil
	}
}

// parseRow reads one row of a CSV form into req.
func (r *Reader) parseRow(line []byte, req *Request) *problem {
	*req = Request{Hashes: req.Hashes[:0]}
	p := r.cells(line, req)
	if p != nil {
		p.remedy = "write rows like " + rows[r.o.Form] + " below a header like " + headers[r.o.Form]
	}
	return p
}

func (r *Reader) cells(line []byte, req *Request) *problem {
	t := r.table
	text := unsafe.String(unsafe.SliceData(line), len(line)) // the line stays as it is until the next one
	var whole bool
	t.row, whole = split(t.row[:0], strings.TrimRight(text, "\r\n"))
	switch {
	case !whole:
		return &problem{what: "a quotation mark is not closed"}
	case len(t.row) != t.width:
		return &problem{what: fmt.Sprintf("has %d cells, want %d as in the header", len(t.row), t.width), cut: len(t.row) < t.width}
	}
	at, p := r.clock(t.row[t.at[columnTime]])
	if p != nil {
		return p
	}
	for _, c := range []struct {
		column int
		value  *int
	}{{columnInput, &req.InputTokens}, {columnOutput, &req.OutputTokens}} {
		n, p := r.number(t.row[t.at[c.column]].json(), numeral{name: columnNames[r.o.Form][c.column], most: math.MaxInt32, unit: 1})
		if p != nil {
			return p
		}
		*c.value = int(n)
	}
	if i := t.at[columnSession]; i >= 0 {
		req.Session = strings.Clone(t.row[i].text)
	}
	if !t.began {
		t.began, t.start = true, at
	}
	if req.Timestamp = max(0, at-t.start); at-t.start < r.last {
		r.made.OutOfOrder++
	}
	r.last = req.Timestamp
	r.made.LengthsOnly++
	return nil
}

// clock reads a row's time, in milliseconds from some origin.
func (r *Reader) clock(c cell) (int64, *problem) {
	if r.o.Form == BurstGPT {
		n, p := r.number(c.json(), numeral{name: "timestamp", most: math.MaxInt64, unit: 1000, fractions: true})
		return int64(n), p
	}
	for _, layout := range clocks {
		if at, err := time.Parse(layout, c.text); err == nil {
			if at.Nanosecond()%int(time.Millisecond) != 0 {
				r.made.Fractions++
			}
			return at.Round(time.Millisecond).UnixMilli(), nil
		}
	}
	return 0, unexpected(c.json(), "a time like "+strings.SplitN(rows[Azure], ",", 2)[0])
}

// cell is one value of a row.
type cell struct {
	text string
	at   int // offset in the line
}

// json is the cell as the readers of numbers take one. What is not a number in
// JSON is none here either.
func (c cell) json() gjson.Result {
	v := gjson.Result{Type: gjson.Number, Raw: strings.TrimSpace(c.text), Index: c.at}
	if !gjson.Valid(v.Raw) {
		v.Raw = "the text " + v.Raw // no number for strconv either, such as 0x10, Inf or 1_000
	}
	return v
}

// split appends the cells of a row to row, by the rules of RFC 4180 for a row on
// one line; false if a quotation mark is not closed.
func split(row []cell, line string) (_ []cell, whole bool) {
	for at := 0; ; {
		if !strings.HasPrefix(line[at:], `"`) {
			n := strings.IndexByte(line[at:], ',')
			if n < 0 {
				return append(row, cell{line[at:], at}), true
			}
			row = append(row, cell{line[at : at+n], at})
			at += n + 1
			continue
		}
		end, doubled := at+1, false
		for end < len(line) && (line[end] != '"' || strings.HasPrefix(line[end+1:], `"`)) {
			if line[end] == '"' {
				doubled = true
				end++
			}
			end++
		}
		if end >= len(line) {
			return row, false
		}
		text := line[at+1 : end]
		if doubled {
			text = strings.ReplaceAll(text, `""`, `"`)
		}
		row = append(row, cell{text, at})
		switch rest := line[end+1:]; {
		case rest == "":
			return row, true
		case rest[0] != ',':
			return row, false
		}
		at = end + 2
	}
}
