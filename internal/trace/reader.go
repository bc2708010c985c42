package trace

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
)

// DefaultMaxLine bounds a line when ReaderOptions does not: room for a prompt
// of a million tokens in blocks of 16, four times over.
const DefaultMaxLine = 8 << 20

// bufferSize has room for a usual first line, by which a form is recognised.
const bufferSize = 256 << 10

// ReaderOptions say what a valid trace looks like. The zero value is Mooncake's form.
type ReaderOptions struct {
	BlockTokens int  // tokens of a block; 0 means the package's BlockTokens
	MaxLine     int  // longest line accepted, in bytes; 0 means DefaultMaxLine
	Seconds     bool // timestamps, delays and pauses of JSON lines are seconds, not milliseconds
	Form        Form // how requests are written; empty: as the first line shows
}

// unit is what 1 of a timestamp stands for, in milliseconds.
func (o ReaderOptions) unit() uint64 {
	if o.Seconds {
		return 1000
	}
	return 1
}

// Reader reads a trace line by line. It keeps one line, a few words for each
// session that the trace names, and in aiperf's form the ids of each session's
// first prompt. It is not safe for concurrent use.
type Reader struct {
	name  string
	o     ReaderOptions
	table *table // columns of a CSV form, otherwise nil
	in    *bufio.Reader
	file  io.Closer
	line  int
	long  []byte              // a line that does not fit in's buffer
	seen  map[uint64]struct{} // hash ids of the line at hand
	ended error

	made     Assumed
	requests int
	last     int64                    // timestamp of the request before
	sessions map[string]*conversation // by session_id as JSON
}

// Open opens a trace file, compressed by gzip or not, as its first bytes show.
// The caller must Close the Reader.
func Open(path string, o ReaderOptions) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	r, err := NewReader(f, path, o)
	if err != nil {
		f.Close()
		return nil, err
	}
	r.file = f
	return r, nil
}

// NewReader reads a trace from r, compressed or not; name stands for it in
// errors. It fails with a LineError when a compressed stream is damaged at its
// start.
func NewReader(r io.Reader, name string, o ReaderOptions) (*Reader, error) {
	o.BlockTokens = orDefault(o.BlockTokens)
	if o.MaxLine <= 0 {
		o.MaxLine = DefaultMaxLine
	}
	in, err := Text(r, name)
	if err != nil {
		return nil, err
	}
	if o.Form == "" {
		o.Form = recognise(in)
	}
	reader := &Reader{name: name, o: o, in: in, seen: make(map[uint64]struct{}, 256), sessions: map[string]*conversation{}}
	if err := reader.readHeader(); err != nil {
		return nil, err
	}
	return reader, nil
}

// Form returns how the requests are written.
func (r *Reader) Form() Form { return r.o.Form }

// Text returns the text of r, decompressed if it is compressed by gzip and
// without a byte-order mark; name stands for it in errors. It fails with a
// LineError for what is no text.
func Text(r io.Reader, name string) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, bufferSize)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, damaged(name, 1, err)
		}
		in = bufio.NewReaderSize(z, bufferSize)
	}
	return in, begin(in, name)
}

// begin passes over a byte-order mark and refuses what is no text.
func begin(in *bufio.Reader, name string) error {
	start, _ := in.Peek(4) // a read error comes again
	for _, c := range []struct{ magic, problem, remedy string }{
		{"\xff\xfe", "text in UTF-16", "convert it with iconv -f UTF-16 -t UTF-8"},
		{"\xfe\xff", "text in UTF-16", "convert it with iconv -f UTF-16 -t UTF-8"},
		{"\x28\xb5\x2f\xfd", "compressed by zstd", "decompress it with zstd -d"},
		{"BZh", "compressed by bzip2", "decompress it with bunzip2"},
		{"\xfd7zX", "compressed by xz", "decompress it with unxz"},
		{"PK\x03\x04", "a zip archive", "unpack it with unzip"},
		{"PAR1", "a Parquet file", "write it as JSON Lines"},
	} {
		if bytes.HasPrefix(start, []byte(c.magic)) {
			return &LineError{File: name, Line: 1, Problem: c.problem, Remedy: c.remedy}
		}
	}
	if bytes.HasPrefix(start, []byte("\xef\xbb\xbf")) {
		_, _ = in.Discard(3) // it was peeked at
	}
	return nil
}

// Assumed returns what was assumed of the requests read so far.
func (r *Reader) Assumed() Assumed { return r.made }

// Close closes the file that Open opened.
func (r *Reader) Close() error {
	r.ended = io.EOF
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Next reads the next request into req, reusing the capacity of req.Hashes. It
// returns io.EOF at the end and a LineError for a wrong line, after which the
// Reader stays at that error. Empty lines are skipped.
func (r *Reader) Next(req *Request) error {
	for r.ended == nil {
		line, err := r.readLine()
		if err != nil {
			r.ended = err
			break
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		parse := r.parse
		if r.table != nil {
			parse = r.parseRow
		}
		if p := parse(line, req); p != nil {
			if r.requests == 0 && r.table == nil && !bytes.HasPrefix(bytes.TrimSpace(line), []byte("{")) {
				p.remedy += fmt.Sprintf("; or begin a CSV file with %s or %s", headers[Azure], headers[BurstGPT])
			}
			if p.cut {
				p.remedy += r.sofar()
			}
			r.ended = &LineError{File: r.name, Line: r.line, Problem: p.what, Remedy: p.remedy}
			break
		}
		r.requests++
		return nil
	}
	return r.ended
}

// readLine returns the next line, valid until the next call.
func (r *Reader) readLine() ([]byte, error) {
	r.line++
	r.long = r.long[:0]
	for {
		part, err := r.in.ReadSlice('\n')
		switch {
		case len(r.long)+len(part) > r.o.MaxLine:
			return nil, &LineError{File: r.name, Line: r.line,
				Problem: fmt.Sprintf("longer than %d bytes", r.o.MaxLine),
				Remedy:  "check that this is JSON Lines, one request a line"}
		case err == nil && len(r.long) == 0:
			return part, nil
		case err == nil || err == io.EOF && len(r.long)+len(part) > 0:
			r.long = append(r.long, part...)
			return r.long, nil
		case err == io.EOF:
			return nil, io.EOF
		case errors.Is(err, bufio.ErrBufferFull):
			r.long = append(r.long, part...)
		case isGzip(err):
			err := damaged(r.name, r.line, err)
			err.Remedy += r.sofar()
			return nil, err
		default:
			return nil, fmt.Errorf("trace %s, line %d: %w", r.name, r.line, err)
		}
	}
}

// sofar reports how to read what comes before a cut.
func (r *Reader) sofar() string {
	if r.requests == 0 {
		return ""
	}
	return fmt.Sprintf("; or read the %d requests before it with a limit of %d", r.requests, r.requests)
}

func damaged(name string, line int, err error) *LineError {
	return &LineError{File: name, Line: line, Err: err,
		Problem: "compressed data is damaged or cut short (" + err.Error() + ")",
		Remedy:  "copy or download the file again and test it with gzip -t"}
}

// isGzip distinguishes damage of the compression from failures to read the file.
func isGzip(err error) bool {
	var corrupt flate.CorruptInputError
	return errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &corrupt)
}
