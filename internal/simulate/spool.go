package simulate

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"cascadekv/internal/trace"
)

// never is the next use of a block that nobody asks for again.
const never = math.MaxUint32

// spool is a trace in a temporary file that has no name, so that nothing is left of it
// whatever happens. A request is a record of little-endian words of 32 bits:
//
//	n, tokens, milliseconds (two words), shared blocks, pause, n numbers of blocks, n next uses, n
//
// A next use is the number of the next request that asks for the block. The count is
// there at the end too, so that the file can be read backward.
type spool struct {
	file       *os.File
	size       int64 // bytes
	requests   int
	references int64
	unique     int           // distinct blocks
	unlimited  int64         // hits of a tier that keeps everything
	prompts    int64         // tokens
	answers    int64         // tokens
	last       time.Duration // of a request, since the first
}

// request is one record.
type request struct {
	at     time.Duration // since the first request; it never goes back
	tokens int
	blocks []uint32
	next   []uint32 // of each block, once next uses are known
	hints
}

// hints are those of a request, zero where it has none. Policies find sessions out by themselves.
type hints struct {
	shared int           // leading blocks that sessions share
	pause  time.Duration // before the session's next request
}

// hintsOf are those of a request of a trace.
func hintsOf(r *trace.Request) hints {
	return hints{
		shared: max(0, min(r.SharedBlocks, len(r.Hashes))),
		pause:  time.Duration(min(max(r.Pause, 0), longestPause)) * time.Millisecond,
	}
}

// longestPause is in milliseconds: seven weeks.
const longestPause = math.MaxUint32

const (
	wordBytes   = 4
	headBytes   = 6 * wordBytes
	spoolBuffer = 1 << 20
)

// recordBytes is the size of the record of a request of n blocks.
func recordBytes(n int) int { return headBytes + (2*n+1)*wordBytes }

// newSpool reads a trace to its end, or so many requests, 0 for all, into a file in dir.
func newSpool(ctx context.Context, src trace.Source, limit int, dir string) (_ *spool, err error) {
	file, err := os.CreateTemp(dir, "cascade-simulate-*")
	if err != nil {
		return nil, fmt.Errorf("simulate: a file for the trace: %w; set TMPDIR to a directory that can be written", err)
	}
	s := &spool{file: file}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := os.Remove(file.Name()); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	return s, s.fromTrace(ctx, src, limit)
}

func (s *spool) close() error { return s.file.Close() }

func (s *spool) fromTrace(ctx context.Context, src trace.Source, limit int) error {
	w := bufio.NewWriterSize(s.file, spoolBuffer)
	known := newNumbering()
	var in trace.Request
	var out request
	var record []byte
	var first int64
	for limit <= 0 || s.requests < limit {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := src.Next(&in); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if s.requests == 0 {
			first = in.Timestamp
		}
		out.at = max(out.at, time.Duration(in.Timestamp-first)*time.Millisecond)
		out.tokens, out.blocks, out.hints = in.InputTokens, out.blocks[:0], hintsOf(&in)
		prefix := true
		for _, hash := range in.Hashes {
			number, isNew := known.number(hash)
			if prefix = prefix && !isNew; prefix {
				s.unlimited++
			}
			out.blocks = append(out.blocks, number)
		}
		record = out.appendTo(record[:0])
		if _, err := w.Write(record); err != nil {
			return noSpace(err)
		}
		s.prompts += int64(in.InputTokens)
		s.answers += int64(in.OutputTokens)
		s.last = out.at
		s.size += int64(len(record))
		s.requests++
		s.references += int64(len(out.blocks))
	}
	s.unique = len(known.hashes)
	if err := w.Flush(); err != nil {
		return noSpace(err)
	}
	return nil
}

func noSpace(err error) error {
	return fmt.Errorf("simulate: write the trace to a temporary file: %w; set TMPDIR to a directory with room for 8 bytes per block of each request", err)
}

// appendTo appends the record of a request, without next uses.
func (r *request) appendTo(p []byte) []byte {
	put := binary.LittleEndian
	p = put.AppendUint32(p, uint32(len(r.blocks)))
	p = put.AppendUint32(p, uint32(r.tokens))
	p = put.AppendUint64(p, uint64(r.at/time.Millisecond))
	p = put.AppendUint32(p, uint32(r.shared))
	p = put.AppendUint32(p, uint32(r.pause/time.Millisecond))
	for _, b := range r.blocks {
		p = put.AppendUint32(p, b)
	}
	p = append(p, make([]byte, len(r.blocks)*wordBytes)...)
	return put.AppendUint32(p, uint32(len(r.blocks)))
}

// linkUses computes all next uses. It goes through the file backward, a part at a time.
func (s *spool) linkUses(ctx context.Context) error {
	uses := make([]uint32, s.unique) // by the requests that were seen
	for i := range uses {
		uses[i] = never
	}
	number := s.requests
	var buffer []byte
	for end := s.size; end > 0; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		part, err := s.before(end, &buffer)
		if err != nil {
			return fmt.Errorf("simulate: read the temporary file: %w", err)
		}
		end -= int64(len(part))
		for from := len(part); from > 0; {
			n := int(binary.LittleEndian.Uint32(part[from-wordBytes:]))
			from -= recordBytes(n)
			number--
			blocks := part[from+headBytes:][:2*n*wordBytes]
			for ; len(blocks) > n*wordBytes; blocks = blocks[wordBytes:] {
				b := binary.LittleEndian.Uint32(blocks)
				binary.LittleEndian.PutUint32(blocks[n*wordBytes:], uses[b])
				uses[b] = uint32(number)
			}
		}
		if _, err := s.file.WriteAt(part, end); err != nil {
			return noSpace(err)
		}
	}
	return nil
}

// before reads the last whole records before an offset, at least one.
func (s *spool) before(end int64, buffer *[]byte) ([]byte, error) {
	read := func(size int64) ([]byte, error) {
		if int64(len(*buffer)) < size {
			*buffer = make([]byte, size)
		}
		_, err := s.file.ReadAt((*buffer)[:size], end-size)
		return (*buffer)[:size], err
	}
	part, err := read(min(end, 4*spoolBuffer))
	if err != nil {
		return nil, err
	}
	lastBytes := func(to int) int { return recordBytes(int(binary.LittleEndian.Uint32(part[to-wordBytes:]))) }
	from := len(part)
	for from >= wordBytes && lastBytes(from) <= from {
		from -= lastBytes(from)
	}
	if from < len(part) {
		return part[from:], nil
	}
	return read(int64(lastBytes(len(part))))
}

// cursor reads a spool from its start.
type cursor struct {
	in    *bufio.Reader
	next  bool    // next uses are wanted
	hints bool    // the policy gets hints
	wrong float64 // share of the requests with hints by chance
	count uint64  // requests read
	r     request
	word  []byte
}

// read returns a cursor. Many may read at once.
func (s *spool) read(nextUses bool) *cursor {
	return &cursor{in: bufio.NewReaderSize(io.NewSectionReader(s.file, 0, s.size), spoolBuffer), next: nextUses}
}

// advance reads one request, which is the cursor's until the next call; io.EOF at the end.
func (c *cursor) advance() (*request, error) {
	head, err := c.in.Peek(headBytes)
	if err != nil {
		if err == io.EOF && len(head) == 0 {
			return nil, io.EOF
		}
		return nil, fmt.Errorf("simulate: read the temporary file: %w", err)
	}
	n := int(binary.LittleEndian.Uint32(head))
	c.r.tokens = int(binary.LittleEndian.Uint32(head[wordBytes:]))
	c.r.at = time.Duration(binary.LittleEndian.Uint64(head[2*wordBytes:])) * time.Millisecond
	c.r.hints = hints{}
	if c.hints {
		c.r.shared = int(binary.LittleEndian.Uint32(head[4*wordBytes:]))
		c.r.pause = time.Duration(binary.LittleEndian.Uint32(head[5*wordBytes:])) * time.Millisecond
		c.mislead(n)
	}
	if size := recordBytes(n); cap(c.word) < size {
		c.word = make([]byte, 2*size)
	}
	record := c.word[:recordBytes(n)]
	if _, err := io.ReadFull(c.in, record); err != nil {
		return nil, fmt.Errorf("simulate: read the temporary file: %w", err)
	}
	c.r.blocks = words(c.r.blocks[:0], record[headBytes:][:n*wordBytes])
	if c.next {
		c.r.next = words(c.r.next[:0], record[headBytes+n*wordBytes:][:n*wordBytes])
	}
	return &c.r, nil
}

// mislead makes hints of the next request wrong, if it is one of those: any number of its blocks is
// shared, and it is paused for 0.1 s to 2.8 hours, or not at all. They are the same at each share.
func (c *cursor) mislead(blocks int) {
	c.count++
	if draw := scramble(c.count * 4); float64(draw>>11)/(1<<53) >= c.wrong {
		return
	}
	c.r.shared = int(scramble(c.count*4+1) % uint64(blocks+1))
	c.r.pause = 0
	if draw := scramble(c.count*4 + 2); draw&1 == 0 {
		c.r.pause = time.Duration(float64(100*time.Millisecond) * math.Pow(10, 5*float64(draw>>11)/(1<<53)))
	}
}

func words(to []uint32, from []byte) []uint32 {
	for ; len(from) > 0; from = from[wordBytes:] {
		to = append(to, binary.LittleEndian.Uint32(from))
	}
	return to
}
