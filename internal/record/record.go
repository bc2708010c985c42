package record

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"cascadekv/cascade/traffic"
	"cascadekv/internal/resp"
	"cascadekv/internal/trace"
)

const (
	perAnswer = 4096                // commands of one answer
	waitMilli = 500                 // for the first of them: so long an end of ctx may wait
	lastTries = 1<<16/perAnswer + 1 // answers after the end: what the rank may have kept
	maxSpaces = 4096                // namespaces whose blocks' tokens are remembered
	unknown   = 0                   // tokens of a block
	idBits    = 63                  // of an id: a positive 64-bit number, for readers whose integers have a sign
)

// Options say what is recorded, and as what.
type Options struct {
	Client *resp.Client // to the rank, on its unix socket, as its own user; it is used until Run returns

	Salt         []byte            // secret that ids are made with; recordings of one salt can be joined
	Namespace    func(string) bool // which are recorded; nil: all
	BlockTokens  int               // tokens of a block where the rank does not know them
	OutputTokens int               // of each answer: the rank does not see answers

	For      time.Duration // how long; 0: until ctx ends
	Requests int           // how many at most; 0: any number

	// Started is called when the rank logs commands from then on; nil: nothing is.
	Started func()

	// Write takes each request in order. The slices are its own. Its error ends the recording.
	Write func(*trace.Request) error
}

// Result is what was recorded.
type Result struct {
	Requests     int   `json:"requests"`
	Blocks       int64 `json:"blocks"`        // of all requests
	Commands     int64 `json:"commands"`      // of clients that were put together to requests
	Milliseconds int64 `json:"milliseconds"`  // from the first request to the last
	BlockTokens  int   `json:"block_tokens"`  // of the whole trace
	OutputTokens int   `json:"output_tokens"` // of each answer, as assumed

	// What makes the trace less than the traffic.
	Dropped     uint64 `json:"dropped_commands"`     // that the rank forgot before they were read
	Cut         int    `json:"cut_requests"`         // ended early: too many were under way, or one had too many blocks
	Headless    int    `json:"headless_requests"`    // whose first blocks are not known
	OtherTokens int    `json:"other_block_tokens"`   // requests left out: a trace has one size of blocks
	Assumed     int    `json:"assumed_block_tokens"` // requests whose blocks' tokens are assumed
}

// ErrTraffic means an answer that is not a rank's of this version.
var ErrTraffic = errors.New("record: the answer to CASCADE.TRAFFIC is not understood; is the rank of this version?")

// recorder is a recording under way.
type recorder struct {
	o      Options
	merger *Merger
	result Result
	tokens map[string]int // of a block, by namespace
	first  int64          // when the first request began
	failed error          // to write, or to ask
	done   bool           // as many requests as are wanted
}

// Run records until ctx ends, the time is over or there are enough requests, and returns what
// it recorded; an end is no error. On an error what was recorded until then has been written.
func Run(ctx context.Context, o Options) (Result, error) {
	r := &recorder{o: o, tokens: map[string]int{}}
	r.merger = NewMerger(r.write)
	err := r.read(ctx)
	r.merger.Flush()
	r.result.Cut = r.merger.Cut()
	return r.result, errors.Join(err, r.failed)
}

// read takes commands in as the rank logs them.
func (r *recorder) read(ctx context.Context) error {
	next, _, err := r.ask(0, 0)
	if err != nil {
		return err
	}
	if r.o.Started != nil {
		r.o.Started()
	}
	if r.o.For > 0 {
		limited, cancel := context.WithTimeout(ctx, r.o.For)
		defer cancel()
		ctx = limited
	}
	for tries := 0; !r.done && r.failed == nil; {
		wait := waitMilli
		if ctx.Err() != nil {
			wait = 0
			tries++
		}
		var n int
		if next, n, err = r.ask(next, wait); err != nil {
			return err
		}
		if ctx.Err() != nil && wait == 0 && (n == 0 || tries > lastTries) {
			return nil
		}
		r.merger.Advance(time.Now().UnixMilli())
	}
	return nil
}

// ask takes in the commands from a number on, and returns the number to go on with and how
// many there were.
func (r *recorder) ask(since uint64, wait int) (next uint64, n int, err error) {
	answer, err := r.o.Client.Do("CASCADE.TRAFFIC", strconv.FormatUint(since, 10), "MAX", strconv.Itoa(perAnswer), "WAIT", strconv.Itoa(wait))
	if err != nil {
		return 0, 0, fmt.Errorf("record: %w", err)
	}
	next, lost, commands, err := parse(answer)
	if err != nil {
		return 0, 0, err
	}
	r.result.Dropped += lost
	for i := range commands {
		if c := &commands[i]; !r.done && (r.o.Namespace == nil || r.o.Namespace(c.Namespace)) {
			r.result.Commands++
			r.merger.Add(c)
		}
	}
	return next, len(commands), nil
}

// parse reads an answer to CASCADE.TRAFFIC. The error is ErrTraffic.
func parse(answer resp.Reply) (next, lost uint64, commands []traffic.Command, err error) {
	if len(answer.Elems) != 3 || answer.Elems[0].Int < 0 || answer.Elems[1].Int < 0 {
		return 0, 0, nil, ErrTraffic
	}
	commands = make([]traffic.Command, len(answer.Elems[2].Elems))
	for i, e := range answer.Elems[2].Elems {
		if commands[i], err = traffic.Parse(e.Str); err != nil {
			return 0, 0, nil, fmt.Errorf("%w: %w", ErrTraffic, err)
		}
	}
	return uint64(answer.Elems[0].Int), uint64(answer.Elems[1].Int), commands, nil
}

// write writes a request.
func (r *recorder) write(q *Request) {
	if r.done || r.failed != nil {
		return
	}
	tokens, err := r.tokensOf(q.Namespace)
	if err != nil {
		r.failed = err
		return
	}
	res := &r.result
	assumed := tokens == unknown
	if res.Requests == 0 {
		r.first = q.Began
		if res.BlockTokens = tokens; assumed {
			res.BlockTokens = r.o.BlockTokens
		}
		res.OutputTokens = r.o.OutputTokens
	}
	switch {
	case assumed:
		res.Assumed++
	case tokens != res.BlockTokens:
		res.OtherTokens++
		return
	}
	out := trace.Request{
		Timestamp: max(q.Began-r.first, res.Milliseconds), InputTokens: len(q.Keys) * res.BlockTokens, OutputTokens: r.o.OutputTokens,
		Hashes: salted(r.o.Salt, q.Keys),
	}
	if r.failed = r.o.Write(&out); r.failed != nil {
		return
	}
	res.Requests++
	res.Blocks += int64(len(q.Keys))
	res.Milliseconds = out.Timestamp
	if q.Headless {
		res.Headless++
	}
	r.done = res.Requests == r.o.Requests
}

// tokensOf asks the rank once for how many tokens a block of a namespace has.
func (r *recorder) tokensOf(ns string) (int, error) {
	if n, known := r.tokens[ns]; known {
		return n, nil
	}
	layout, err := r.o.Client.Do("CASCADE.LAYOUT", ns)
	if err != nil {
		return 0, fmt.Errorf("record: layout of a namespace: %w", err)
	}
	if len(r.tokens) >= maxSpaces {
		clear(r.tokens)
	}
	n := int(layout.Field("tokens").Int)
	r.tokens[ns] = n
	return n, nil
}

// salted returns the ids of blocks: they are equal for equal keys and salts, and whoever does
// not know the salt can not try keys out.
func salted(salt []byte, keys []uint64) []uint64 {
	mac := hmac.New(sha256.New, salt)
	ids := make([]uint64, len(keys))
	var in [8]byte
	var sum [sha256.Size]byte
	for i, k := range keys {
		mac.Reset()
		binary.LittleEndian.PutUint64(in[:], k)
		mac.Write(in[:])
		ids[i] = binary.LittleEndian.Uint64(mac.Sum(sum[:0])) >> (64 - idBits)
	}
	return ids
}
