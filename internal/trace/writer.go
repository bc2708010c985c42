package trace

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Writer writes a trace with the very bytes Mooncake's own tool would use, and
// hints after them where a request has any. It is not safe for concurrent use. Close it: what was written is buffered.
type Writer struct {
	out  *bufio.Writer
	line []byte
	zip  *gzip.Writer
	file *os.File
	path string
	done bool
}

// NewWriter writes to w, uncompressed. Close flushes but does not close w.
func NewWriter(w io.Writer) *Writer {
	return &Writer{out: bufio.NewWriterSize(w, 64<<10)}
}

// Create writes the file path, compressed if it ends in ".gz". The file is
// written beside its place and appears there, whole, on Close.
func Create(path string) (*Writer, error) {
	f, err := os.Create(path + ".part")
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	w := &Writer{file: f, path: path}
	var under io.Writer = f
	if strings.HasSuffix(path, ".gz") {
		w.zip = gzip.NewWriter(f)
		under = w.zip
	}
	w.out = bufio.NewWriterSize(under, 64<<10)
	return w, nil
}

// Write adds one request.
func (w *Writer) Write(r *Request) error {
	b := append(w.line[:0], `{"timestamp": `...)
	b = strconv.AppendInt(b, r.Timestamp, 10)
	b = append(b, `, "input_length": `...)
	b = strconv.AppendInt(b, int64(r.InputTokens), 10)
	b = append(b, `, "output_length": `...)
	b = strconv.AppendInt(b, int64(r.OutputTokens), 10)
	b = append(b, `, "hash_ids": [`...)
	for i, h := range r.Hashes {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendUint(b, h, 10)
	}
	b = appendHints(append(b, ']'), r)
	w.line = append(b, "}\n"...)
	if _, err := w.out.Write(w.line); err != nil {
		return fmt.Errorf("trace: write: %w", err)
	}
	return nil
}

// appendHints adds the optional fields that are set.
func appendHints(b []byte, r *Request) []byte {
	if r.Session != "" {
		b = append(b, `, "session_id": `...)
		name, _ := json.Marshal(r.Session) // a string always has a form in JSON
		b = append(b, name...)
	}
	if r.SharedBlocks > 0 {
		b = append(b, `, "shared_blocks": `...)
		b = strconv.AppendInt(b, int64(r.SharedBlocks), 10)
	}
	if r.Pause > 0 {
		b = append(b, `, "pause": `...)
		b = strconv.AppendInt(b, r.Pause, 10)
	}
	return b
}

// Close writes what is buffered and, after Create, puts the file in its place.
// When it fails, no file has appeared.
func (w *Writer) Close() error {
	if w.done {
		return nil
	}
	w.done = true
	err := w.out.Flush()
	if w.zip != nil && err == nil {
		err = w.zip.Close()
	}
	if w.file != nil {
		if e := w.file.Close(); err == nil {
			err = e
		}
		if err == nil {
			err = os.Rename(w.file.Name(), w.path)
		}
		if err != nil {
			os.Remove(w.file.Name())
		}
	}
	if err != nil {
		return fmt.Errorf("trace: write: %w", err)
	}
	return nil
}

// Abort drops a file that Create began. After Close it does nothing.
func (w *Writer) Abort() {
	if w.done {
		return
	}
	w.done = true
	if w.file != nil {
		w.file.Close()
		os.Remove(w.file.Name())
	}
}
