package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/lustre/codec"
)

// CodecOptions choose a measurement of the codecs. The zero value measures
// 64 KiB, 1 MiB and 2 MiB.
type CodecOptions struct {
	Sizes  []int         // bytes of a block, multiples of 4096
	Total  int           // bytes of all blocks of a setting; default 16 MiB, more than a core's caches
	Rounds int           // of each phase; default 5
	Budget time.Duration // CPU time that a phase takes; default 30 ms

	Progress func(done, total int) // called after each setting, by one goroutine; may be nil
}

// CodecResult is what one core does. 1 GB is 10⁹ bytes of blocks, whatever
// they become; GB/s are per second of CPU time.
type CodecResult struct {
	Ratio  float64 `json:"ratio"`  // of what auto chose for bf16 tensors, at the last size
	Rounds int     `json:"rounds"` // of which medians are given

	Machine  Machine        `json:"machine"`
	Settings []CodecSetting `json:"settings"`
	Shuffle  []CodecShuffle `json:"shuffle"`
}

// CodecSetting is one kind of content in blocks of one size.
type CodecSetting struct {
	Data     string      `json:"data"`
	Bytes    int         `json:"bytes"`
	Auto     string      `json:"auto"`      // the codec that was chosen for most blocks
	CopyGBps float64     `json:"copy_gbps"` // the same blocks, copied
	Codecs   []CodecRate `json:"codecs"`
}

// CodecRate is one way to store the blocks of a setting.
type CodecRate struct {
	Codec       string  `json:"codec"`                 // auto, or a codec and its effort
	Ratio       float64 `json:"ratio"`                 // bytes of blocks to bytes stored; 1 for blocks left as they are
	PageRatio   float64 `json:"page_ratio"`            // the same in pages of 4096 bytes, as segments store them
	Encoded     int     `json:"encoded"`               // blocks that became smaller
	Blocks      int     `json:"blocks"`                //
	EncodeGBps  float64 `json:"encode_gbps"`           // finding out that a block does not become smaller included
	DecodeGBps  float64 `json:"decode_gbps,omitempty"` // of blocks that became smaller; absent without any
	InPlaceGBps float64 `json:"decode_in_place_gbps,omitempty"`
}

// CodecShuffle is the speed of the byte planes alone, over pieces that fit
// into a core's cache.
type CodecShuffle struct {
	Stride   int     `json:"stride"`
	OutGBps  float64 `json:"out_gbps"`
	BackGBps float64 `json:"back_gbps"`
	CopyGBps float64 `json:"copy_gbps"`
}

func (o CodecOptions) withDefaults() CodecOptions {
	if len(o.Sizes) == 0 {
		o.Sizes = []int{64 << 10, 1 << 20, 2 << 20}
	}
	if o.Total == 0 {
		o.Total = 16 << 20
	}
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Budget == 0 {
		o.Budget = 30 * time.Millisecond
	}
	return o
}

func (o CodecOptions) check() error {
	for _, size := range o.Sizes {
		if size < 4096 || size%4096 != 0 || size > o.Total {
			return fmt.Errorf("%w: blocks of %d bytes, want multiples of 4096 up to %d", ErrBadOption, size, o.Total)
		}
	}
	if o.Rounds < 1 || o.Budget < 0 {
		return fmt.Errorf("%w: %d rounds of %v", ErrBadOption, o.Rounds, o.Budget)
	}
	return nil
}

// codecWays are the ways to store a block that are compared. The first lets
// the codec package choose.
var codecWays = []struct {
	name   string
	number codec.Number
	effort codec.Effort
}{
	{"auto", codec.None, codec.Huffman},
	{"zstd, matches", codec.Zstd, codec.Matches},
	{"shuffle2+zstd, Huffman", codec.Shuffle2, codec.Huffman},
	{"shuffle2+zstd, matches", codec.Shuffle2, codec.Matches},
}

// Codec measures ratio and speed of the codecs on one core: over tensors like
// those of KV caches (codecdata.go says how they are made), over random bytes
// and over zeros. All bytes that come back are compared.
// Errors: ErrBadOption, ErrWrong.
func Codec(ctx context.Context, o CodecOptions) (res CodecResult, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return res, err
	}
	res = CodecResult{Rounds: o.Rounds, Machine: readMachine()}
	b := &codecBench{o: o}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(); err != nil {
		return res, err
	}
	kinds := []string{dataBF16, dataFP16, dataRandom, dataZero}
	for i, kind := range kinds {
		for j, size := range o.Sizes {
			s, err := b.setting(ctx, kind, size)
			if err != nil {
				return res, fmt.Errorf("%s in blocks of %d: %w", kind, size, err)
			}
			res.Settings = append(res.Settings, s)
			if kind == dataBF16 {
				res.Ratio = s.Codecs[0].Ratio
			}
			if o.Progress != nil {
				o.Progress(i*len(o.Sizes)+j+1, len(kinds)*len(o.Sizes))
			}
		}
	}
	for _, stride := range []int{2, 4} {
		res.Shuffle = append(res.Shuffle, b.shuffle(stride))
	}
	return res, nil
}

// codecBench is the memory of a run, outside the Go heap.
type codecBench struct {
	o      CodecOptions
	blocks []byte // the blocks of a setting
	coded  []byte // their encodings, each where its block would be
	back   []byte // one block that came back
	rooms  [][]byte
}

func (b *codecBench) open() error {
	for _, p := range []*[]byte{&b.blocks, &b.coded, &b.back} {
		mem, err := mapRoom(max(b.o.Total, shuffleBytes))
		if err != nil {
			return err
		}
		*p = mem
		b.rooms = append(b.rooms, mem)
	}
	return nil
}

func (b *codecBench) close() (err error) {
	for _, mem := range b.rooms {
		err = errors.Join(err, unix.Munmap(mem))
	}
	return err
}

func (b *codecBench) setting(ctx context.Context, kind string, size int) (CodecSetting, error) {
	n := b.o.Total / size
	fillCodecData(kind, b.blocks[:n*size], size)
	s := CodecSetting{Data: kind, Bytes: size, CopyGBps: b.rate(size, n, func(i int) error {
		copy(b.back[:size], b.blocks[i*size:])
		return nil
	})}
	for way := range codecWays {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		rate, chosen, err := b.way(way, size, n)
		if err != nil {
			return s, fmt.Errorf("%s: %w", codecWays[way].name, err)
		}
		s.Codecs = append(s.Codecs, rate)
		if way == 0 {
			s.Auto = chosen.String()
		}
	}
	return s, nil
}

// way measures one way of storing n blocks, and returns the codec most of them
// have then.
func (b *codecBench) way(way, size, n int) (rate CodecRate, most codec.Number, err error) {
	w := codecWays[way]
	c, err := codec.New(codec.Options{Workers: 1})
	if err != nil {
		return rate, most, fmt.Errorf("bench: %w", err)
	}
	results := make([]codec.Encoded, n)
	failed := error(nil)
	encode := func(i int) error {
		src, dst := b.blocks[i*size:][:size], b.coded[i*size:][:size]
		if way == 0 {
			results[i], err = c.Encode("bench", dst, src)
			return err
		}
		stored, err := c.EncodeAs(w.number, w.effort, dst, src)
		if errors.Is(err, codec.ErrNoGain) {
			results[i] = codec.Encoded{}
			return nil
		}
		results[i] = codec.Encoded{Codec: w.number, Size: stored}
		return err
	}
	rate = CodecRate{Codec: w.name, Blocks: n}
	rate.EncodeGBps = b.rate(size, n, func(i int) error {
		failed = errors.Join(failed, encode(i))
		return failed
	})
	// Every block once, whatever the rounds reached.
	for i := range n {
		failed = errors.Join(failed, encode(i))
	}
	if failed != nil {
		return rate, most, fmt.Errorf("bench: %w", failed)
	}
	var smaller []int
	counts := map[codec.Number]int{}
	stored, pages := 0, 0
	for i, r := range results {
		counts[r.Codec]++
		if counts[r.Codec] > counts[most] {
			most = r.Codec
		}
		if r.Codec == codec.None {
			r.Size = size
		} else {
			smaller = append(smaller, i)
		}
		stored += r.Size
		pages += (r.Size + 4095) / 4096
	}
	rate.Encoded = len(smaller)
	rate.Ratio, rate.PageRatio = round(float64(n*size)/float64(stored)), round(float64(n*size)/float64(pages*4096))
	if len(smaller) > 0 {
		err = b.decode(c, &rate, results, smaller, size)
	}
	return rate, most, err
}

// decode measures both ways back, and compares what comes of each block.
func (b *codecBench) decode(c *codec.Coder, rate *CodecRate, results []codec.Encoded, smaller []int, size int) error {
	back := b.back[:size]
	decode := func(i int) error {
		r := results[smaller[i]]
		return c.Decode(r.Codec, back, b.coded[smaller[i]*size:][:r.Size])
	}
	inPlace := func(i int) error {
		r := results[smaller[i]]
		at := (size - r.Size) &^ 4095
		copy(back[at:], b.coded[smaller[i]*size:][:r.Size]) // as a read from a file would
		return c.DecodeInPlace(r.Codec, back, at, r.Size)
	}
	for i, from := range smaller {
		for _, f := range []func(int) error{decode, inPlace} {
			clear(back)
			if err := f(i); err != nil {
				return fmt.Errorf("bench: %w", err)
			}
			if !bytes.Equal(back, b.blocks[from*size:][:size]) {
				return fmt.Errorf("%w: block %d as %v", ErrWrong, from, results[from].Codec)
			}
		}
	}
	rate.DecodeGBps = b.rate(size, len(smaller), decode)
	rate.InPlaceGBps = b.rate(size, len(smaller), inPlace)
	return nil
}

// rate runs f over blocks 0 to n − 1, again and again, and returns the median
// over the rounds of GB for each second of CPU time, which other work on the
// machine does not lengthen; 0 when f fails, which f's owner notices by itself.
func (b *codecBench) rate(size, n int, f func(i int) error) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var rates []float64
	next := 0
	for range b.o.Rounds {
		done, began := 0, threadTime()
		for done == 0 || threadTime()-began < b.o.Budget {
			if f(next) != nil {
				return 0
			}
			next = (next + 1) % n
			done++
		}
		rates = append(rates, float64(done)*float64(size)/giga/(threadTime()-began).Seconds())
	}
	return round(median(rates))
}

// threadTime is the CPU time that the calling thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// shuffleBytes is a piece of the codecs.
const shuffleBytes = 256 << 10

func (b *codecBench) shuffle(stride int) CodecShuffle {
	const piece = shuffleBytes
	src, dst := b.blocks[:piece], b.coded[:piece]
	return CodecShuffle{
		Stride:   stride,
		OutGBps:  b.rate(piece, 1, func(int) error { codec.Shuffle(dst, src, stride); return nil }),
		BackGBps: b.rate(piece, 1, func(int) error { codec.Unshuffle(dst, src, stride); return nil }),
		CopyGBps: b.rate(piece, 1, func(int) error { copy(dst, src); return nil }),
	}
}
