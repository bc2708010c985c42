package resp

import (
	"bytes"
	"errors"
	"math"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"cascadekv/internal/testing/race"
)

var replyCalls = map[string]func(w *Writer){
	"simple":       func(w *Writer) { w.Simple("OK") },
	"error":        func(w *Writer) { w.Error("ERR no such\r\nthing") },
	"exact-long":   func(w *Writer) { w.ErrorExact("ERR miss", 11) },
	"exact-short":  func(w *Writer) { w.ErrorExact("ERR miss", 5) },
	"exact-padded": func(w *Writer) { w.ErrorExact("ERR miss", 13) },
	"exact-tiny":   func(w *Writer) { w.ErrorExact("ERR miss", 0) },
	"int":          func(w *Writer) { w.Int(-42) },
	"bulk":         func(w *Writer) { w.Bulk([]byte("a\r\nb")) },
	"bulk-empty":   func(w *Writer) { w.Bulk(nil) },
	"bulk-string":  func(w *Writer) { w.BulkString("hi") },
	"bulk-ref":     func(w *Writer) { w.BulkRef([]byte("ref")) },
	"ref-empty":    func(w *Writer) { w.BulkRef(nil) },
	"bulk-header":  func(w *Writer) { w.BulkHeader(32 << 20) },
	"null":         func(w *Writer) { w.Null() },
	"array":        func(w *Writer) { w.Array(2); w.Int(1); w.Int(2) },
	"map":          func(w *Writer) { w.Map(1); w.BulkString("k"); w.Int(1) },
	"true":         func(w *Writer) { w.Bool(true) },
	"false":        func(w *Writer) { w.Bool(false) },
	"double":       func(w *Writer) { w.Double(0.25) },
	"double-inf":   func(w *Writer) { w.Double(math.Inf(-1)) },
	"double-nan":   func(w *Writer) { w.Double(math.NaN()) },
	"verbatim":     func(w *Writer) { w.Verbatim("txt", "hi") },
}

func TestWriterBytes(t *testing.T) {
	file, err := os.ReadFile("testdata/replies.txt")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^([a-z0-9-]+)\s+("[^"]*")\s+("[^"]*")$`)
	rows := row.FindAllStringSubmatch(string(file), -1)
	if len(rows) != len(replyCalls) {
		t.Fatalf("testdata has %d rows for %d calls", len(rows), len(replyCalls))
	}
	for _, m := range rows {
		for i, proto := range []int{2, 3} {
			t.Run(m[1]+"/"+strconv.Itoa(proto), func(t *testing.T) {
				want, err := strconv.Unquote(m[2+i])
				if err != nil {
					t.Fatal(err)
				}
				var w Writer
				w.SetProto(proto)
				replyCalls[m[1]](&w)
				if n := w.Pending(); n != int64(len(want)) {
					t.Errorf("%d bytes pending, want %d", n, len(want))
				}
				var out bytes.Buffer
				if err := w.Flush(&out); err != nil || out.String() != want {
					t.Errorf("wrote %q (%v), want %q", out.String(), err, want)
				}
				if n := w.Pending(); n != 0 {
					t.Errorf("%d bytes pending after the flush", n)
				}
			})
		}
	}
}

func TestRefsKeepTheirPlaceAmongCopies(t *testing.T) {
	var w Writer
	var out bytes.Buffer
	for range 3 { // reuse after a flush must not resurrect old references
		out.Reset()
		w.Array(5)
		w.Bulk([]byte(strings.Repeat("c", 9000))) // moves the buffer between refs
		w.BulkRef([]byte("one"))
		w.BulkRef([]byte("two"))
		w.Null()
		w.Bulk([]byte(strings.Repeat("d", 9000)))
		if err := w.Flush(&out); err != nil {
			t.Fatal(err)
		}
		want := "*5\r\n$9000\r\n" + strings.Repeat("c", 9000) + "\r\n$3\r\none\r\n$3\r\ntwo\r\n$-1\r\n$9000\r\n" + strings.Repeat("d", 9000) + "\r\n"
		if out.String() != want {
			t.Fatalf("wrote %.40q…, want %.40q…", out.String(), want)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestFailedFlushLeavesNothingPending(t *testing.T) {
	var w Writer
	w.BulkRef([]byte("value"))
	if err := w.Flush(failing{}); err == nil || w.Pending() != 0 {
		t.Fatalf("error %v, %d bytes pending", err, w.Pending())
	}
	var out bytes.Buffer
	w.Simple("OK")
	if err := w.Flush(&out); err != nil || out.String() != "+OK\r\n" {
		t.Errorf("wrote %q, %v", out.String(), err)
	}
}

func TestWriterDoesNotAllocate(t *testing.T) {
	a, b := pair(t)
	go drain(b)
	var w Writer
	value := make([]byte, 100_000)
	n := testing.AllocsPerRun(50, func() {
		w.BulkRef(value)
		w.Simple("OK")
		if err := w.Flush(a); err != nil {
			t.Fatal(err)
		}
	})
	// The pool may be emptied by a collection at any time.
	limit := 1.0
	if race.On { // it makes sync.Pool forget
		limit = 4
	}
	if n >= limit {
		t.Errorf("%v allocations per flush", n)
	}
}

func drain(c net.Conn) {
	buf := make([]byte, 1<<20)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
	}
}
