package codecbench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/lustre/codec"
)

// Options choose a measurement of the codecs. The zero value measures
// 64 KiB, 1 MiB and 2 MiB.
type Options struct {
	Sizes  []int         // bytes of a block, multiples of 4096
	Total  int           // bytes of all blocks of a setting; default 16 MiB, more than a core's caches
	Rounds int           // of each phase; default 5
	Budget time.Duration // CPU time that a phase takes; default 30 ms

	Progress func(done, total int) // called after each setting, by one goroutine; may be nil
}

// Result is what one core does. 1 GB is 10⁹ bytes of blocks, whatever
// they become; GB/s are per second of CPU time.
type Result struct {
	Ratio  float64 `json:"ratio"`  // of what auto chose for bf16 tensors, at the last size
	Rounds int     `json:"rounds"` // of which medians are given

	Machine  kit.Machine `json:"machine"`
	Settings []Setting   `json:"settings"`
	Shuffle  []Shuffle   `json:"shuffle"`
}

// Setting is one kind of content in blocks of one size.
type Setting struct {
	Data     string  `json:"data"`
	Bytes    int     `json:"bytes"`
	Auto     string  `json:"auto"`      // the codec that was chosen for most blocks
	CopyGBps float64 `json:"copy_gbps"` // the same blocks, copied
	Codecs   []Rate  `json:"codecs"`
}

// Rate is one way to store the blocks of a setting.
type Rate struct {
	Codec       string  `json:"codec"`                 // auto, or a codec and its effort
	Ratio       float64 `json:"ratio"`                 // bytes of blocks to bytes stored; 1 for blocks left as they are
	PageRatio   float64 `json:"page_ratio"`            // the same in pages of 4096 bytes, as segments store them
	Encoded     int     `json:"encoded"`               // blocks that became smaller
	Blocks      int     `json:"blocks"`                //
	EncodeGBps  float64 `json:"encode_gbps"`           // finding out that a block does not become smaller included
	DecodeGBps  float64 `json:"decode_gbps,omitempty"` // of blocks that became smaller; absent without any
	InPlaceGBps float64 `json:"decode_in_place_gbps,omitempty"`
}

// Shuffle is the speed of the byte planes alone, over pieces that fit
// into a core's cache.
type Shuffle struct {
	Stride   int     `json:"stride"`
	OutGBps  float64 `json:"out_gbps"`
	BackGBps float64 `json:"back_gbps"`
	CopyGBps float64 `json:"copy_gbps"`
}

func (o Options) withDefaults() Options {
	if len(o.Sizes) == 0 {
		o.Sizes = []int{64 << 10, 1 << 20, 2 << 20}
	}
	o.Total = cmp.Or(o.Total, 16<<20)
	o.Rounds = cmp.Or(o.Rounds, 5)
	o.Budget = cmp.Or(o.Budget, 30*time.Millisecond)
	return o
}

func (o Options) check() error {
	for _, size := range o.Sizes {
		if size < 4096 || size%4096 != 0 || size > o.Total {
			return fmt.Errorf("%w: blocks of %d bytes, want multiples of 4096 up to %d", kit.ErrBadOption, size, o.Total)
		}
	}
	if o.Rounds < 1 || o.Budget < 0 {
		return fmt.Errorf("%w: %d rounds of %v", kit.ErrBadOption, o.Rounds, o.Budget)
	}
	return nil
}

// ways are the ways to store a block that are compared. The first lets
// the codec package choose.
var ways = []struct {
	name   string
	number codec.Number
	effort codec.Effort
}{
	{"auto", codec.None, codec.Huffman},
	{"zstd, matches", codec.Zstd, codec.Matches},
	{"shuffle2+zstd, Huffman", codec.Shuffle2, codec.Huffman},
	{"shuffle2+zstd, matches", codec.Shuffle2, codec.Matches},
}

// Run measures ratio and speed of the codecs on one core.
// Errors: kit.ErrBadOption, kit.ErrWrong.
func Run(ctx context.Context, o Options) (res Result, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return res, err
	}
	res = Result{Rounds: o.Rounds, Machine: kit.ReadMachine()}
	b := &bench{o: o}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(); err != nil {
		return res, err
	}
	kinds := []string{dataBF16, dataFP16, dataRandom, dataZero}
	progress := kit.Progress(len(kinds)*len(o.Sizes), o.Progress)
	for _, kind := range kinds {
		for _, size := range o.Sizes {
			s, err := b.setting(ctx, kind, size)
			if err != nil {
				return res, fmt.Errorf("%s in blocks of %d: %w", kind, size, err)
			}
			res.Settings = append(res.Settings, s)
			if kind == dataBF16 {
				res.Ratio = s.Codecs[0].Ratio
			}
			progress()
		}
	}
	for _, stride := range []int{2, 4} {
		res.Shuffle = append(res.Shuffle, b.shuffle(stride))
	}
	return res, nil
}

// bench is the memory of a run, outside the Go heap.
type bench struct {
	o      Options
	blocks []byte // the blocks of a setting
	coded  []byte // their encodings, each where its block would be
	back   []byte // one block that came back
}

func (b *bench) open() (err error) {
	for _, p := range []*[]byte{&b.blocks, &b.coded, &b.back} {
		if *p, err = kit.Map(max(b.o.Total, shuffleBytes)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) close() (err error) {
	for _, p := range [][]byte{b.blocks, b.coded, b.back} {
		if p != nil {
			err = errors.Join(err, unix.Munmap(p))
		}
	}
	return err
}

func (b *bench) setting(ctx context.Context, kind string, size int) (Setting, error) {
	n := b.o.Total / size
	fill(kind, b.blocks[:n*size], size)
	s := Setting{Data: kind, Bytes: size, CopyGBps: b.rate(size, n, func(i int) error {
		copy(b.back[:size], b.blocks[i*size:])
		return nil
	})}
	for way := range ways {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		rate, chosen, err := b.way(way, size, n)
		if err != nil {
			return s, fmt.Errorf("%s: %w", ways[way].name, err)
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
func (b *bench) way(way, size, n int) (rate Rate, most codec.Number, err error) {
	w := ways[way]
	c, err := codec.New(codec.Options{Workers: 1})
	if err != nil {
		return rate, most, fmt.Errorf("bench: %w", err)
	}
	results := make([]codec.Encoded, n)
	encode := func(i int) (err error) {
		src, dst := b.blocks[i*size:][:size], b.coded[i*size:][:size]
		if way == 0 {
			results[i], err = c.Encode("bench", dst, src)
			return err
		}
		results[i].Codec = w.number
		results[i].Size, err = c.EncodeAs(w.number, w.effort, dst, src)
		if errors.Is(err, codec.ErrNoGain) {
			results[i], err = codec.Encoded{}, nil
		}
		return err
	}
	rate = Rate{Codec: w.name, Blocks: n, EncodeGBps: b.rate(size, n, encode)}
	for i := range n { // every block once, also those that the rounds did not reach, and any error again
		if err := encode(i); err != nil {
			return rate, most, fmt.Errorf("bench: %w", err)
		}
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
	rate.Ratio, rate.PageRatio = kit.Round(float64(n*size)/float64(stored)), kit.Round(float64(n*size)/float64(pages*4096))
	if len(smaller) > 0 {
		err = b.decode(c, &rate, results, smaller, size)
	}
	return rate, most, err
}

// decode measures both ways back, and compares what comes of each block.
func (b *bench) decode(c *codec.Coder, rate *Rate, results []codec.Encoded, smaller []int, size int) error {
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
				return fmt.Errorf("%w: block %d as %v", kit.ErrWrong, from, results[from].Codec)
			}
		}
	}
	rate.DecodeGBps = b.rate(size, len(smaller), decode)
	rate.InPlaceGBps = b.rate(size, len(smaller), inPlace)
	return nil
}

// rate runs f over blocks 0 to n − 1, again and again, and returns the median
// over the rounds of GB for each second of CPU time, which other work on the
// machine does not lengthen; 0 when f fails, which f's owner finds out by calling it.
func (b *bench) rate(size, n int, f func(i int) error) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var rates []float64
	next := 0
	for range b.o.Rounds {
		done, began := 0, kit.ThreadTime()
		for done == 0 || kit.ThreadTime()-began < b.o.Budget {
			if f(next) != nil {
				return 0
			}
			next = (next + 1) % n
			done++
		}
		rates = append(rates, float64(done)*float64(size)/kit.Giga/(kit.ThreadTime()-began).Seconds())
	}
	return kit.Median(rates)
}

// shuffleBytes is a piece of the codecs.
const shuffleBytes = 256 << 10

func (b *bench) shuffle(stride int) Shuffle {
	const piece = shuffleBytes
	src, dst := b.blocks[:piece], b.coded[:piece]
	return Shuffle{
		Stride:   stride,
		OutGBps:  b.rate(piece, 1, func(int) error { codec.Shuffle(dst, src, stride); return nil }),
		BackGBps: b.rate(piece, 1, func(int) error { codec.Unshuffle(dst, src, stride); return nil }),
		CopyGBps: b.rate(piece, 1, func(int) error { copy(dst, src); return nil }),
	}
}
