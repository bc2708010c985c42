package codec

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
)

func TestChoice(t *testing.T) {
	halfNoise := append(bf16Bytes(300<<10), randomBytes(300<<10)...)
	for name, tc := range map[string]struct {
		src  []byte
		want Number
	}{
		"bf16":                   {bf16Bytes(700 << 10), Shuffle2},
		"bf16 of 64 KiB":         {bf16Bytes(64 << 10), Shuffle2},
		"fp32":                   {fp32Bytes(300 << 10), Shuffle4},
		"random":                 {randomBytes(300 << 10), None},
		"zero":                   {make([]byte, 1<<20), Zstd},
		"repeated noise":         {repeated(300 << 10), Zstd},
		"bf16, then noise":       {halfNoise, Shuffle2},
		"bf16, odd length":       {bf16Bytes(300<<10 + 1), Shuffle2},
		"less than two pages":    {make([]byte, 4096), None},
		"a little more than one": {make([]byte, 4097), Zstd},
		"empty":                  {nil, None},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCoder(t, Options{})
			dst := make([]byte, c.Room(len(tc.src)))
			got, err := c.Encode("s", dst, tc.src)
			if err != nil || got.Codec != tc.want {
				t.Fatalf("%v, %v, want %v", got, err, tc.want)
			}
			if got.Codec == None {
				return
			}
			back := make([]byte, len(tc.src))
			if err := c.Decode(got.Codec, back, dst[:got.Size]); err != nil || !bytes.Equal(back, tc.src) {
				t.Errorf("wrong bytes came back, %v", err)
			}
		})
	}
}

// TestRoom computes from stored pages what Room promises.
func TestRoom(t *testing.T) {
	for _, o := range []Options{{}, {MinSaving: 0.3}, {AlignBytes: 1, MinSaving: 0.001}, {AlignBytes: 1 << 20}} {
		c := newCoder(t, o)
		o = o.withDefaults()
		pages := func(n int) int { return (n + o.AlignBytes - 1) / o.AlignBytes }
		pays := func(size, stored int) bool {
			return stored < size && float64((pages(size)-pages(stored))*o.AlignBytes) >= o.MinSaving*float64(size)
		}
		for _, size := range []int{0, 1, 100, 4095, 4096, 4097, 8192, 43008, 65536, 1 << 20, 2<<20 + 1} {
			room := c.Room(size)
			if room > 0 && !pays(size, room) || size > 0 && pays(size, room+1) {
				t.Errorf("%+v: room of %d for %d", o, room, size)
			}
		}
	}
}

// TestStreamMemory follows one stream through its life, decision by decision.
func TestStreamMemory(t *testing.T) {
	c := newCoder(t, Options{})
	good, bad := bf16Bytes(64<<10), randomBytes(64<<10)
	dst := make([]byte, len(good))
	var sampledAt []int
	blocks := 0
	put := func(stream string, src []byte, want Number) {
		t.Helper()
		before := c.Stats().Samples
		got, err := c.Encode(stream, dst, src)
		if err != nil || got.Codec != want {
			t.Fatalf("block %d: %v, %v, want %v", blocks, got, err, want)
		}
		if c.Stats().Samples != before {
			sampledAt = append(sampledAt, blocks)
		}
		blocks++
	}
	expect := func(what string, want ...int) {
		t.Helper()
		if fmt.Sprint(sampledAt) != fmt.Sprint(want) {
			t.Errorf("%s: sampled at %v, want %v", what, sampledAt, want)
		}
		sampledAt, blocks = nil, 0
	}
	for range 300 {
		put("a", good, Shuffle2)
	}
	expect("steady", 0, 2, 5, 10, 19, 36, 69, 134, 199, 264)
	// Content changes under way: one block fails, the next one is sampled, and
	// noise is then skipped without a look at it.
	for range 20 {
		put("a", bad, None)
	}
	expect("to noise", 1, 3, 6, 11)
	if c.Stats().Failed != 1 {
		t.Errorf("%d blocks failed, want 1", c.Stats().Failed)
	}
	for range 17 {
		put("a", bad, None)
	}
	// Back again: noticed when the run of the last sample ends.
	put("a", good, Shuffle2)
	put("b", bad, None)
	put("a", good, Shuffle2)
	expect("back", 0, 17, 18)
}

// TestBrokenPromises: samples see only the part of each block that compresses.
// The stream is tried again less and less often.
func TestBrokenPromises(t *testing.T) {
	c := newCoder(t, Options{})
	src := randomBytes(256 << 10)
	for i := range sampleRuns {
		at := (len(src) - sampleRun) / (sampleRuns - 1) * i &^ 3
		clear(src[at : at+sampleRun])
	}
	dst := make([]byte, len(src))
	for range 200 {
		if got, err := c.Encode("s", dst, src); err != nil || got.Codec != None {
			t.Fatalf("%v, %v", got, err)
		}
	}
	// At 0, 3, 8, 17, 34, 67, 132 and 197.
	if st := c.Stats(); st.Samples != 8 || st.Failed != 8 {
		t.Errorf("%d samples, %d failed, want 8 of each", st.Samples, st.Failed)
	}
}

func TestTinyRoomIsNoFailure(t *testing.T) {
	c := newCoder(t, Options{})
	got, err := c.Encode("s", make([]byte, 10), make([]byte, 1<<20))
	if err != nil || got.Codec != None {
		t.Errorf("%v, %v", got, err)
	}
	if got, err = c.Encode("s", nil, make([]byte, 1<<20)); err != nil || got.Codec != None {
		t.Errorf("without room: %v, %v", got, err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{Workers: -1}, {Workers: 1025}, {MinSaving: -0.1}, {MinSaving: 1}, {AlignBytes: -1}} {
		if _, err := New(o); !errors.Is(err, ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestReadsDoNotWaitForWrites: all encoders are busy.
func TestReadsDoNotWaitForWrites(t *testing.T) {
	c := newCoder(t, Options{Workers: 1})
	src := bf16Bytes(64 << 10)
	p := coded(t, c, Shuffle2, Huffman, src)
	w, err := c.encoders.borrow()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.encoders <- w }()
	back := make([]byte, len(src))
	if err := c.Decode(Shuffle2, back, p); err != nil || !bytes.Equal(back, src) {
		t.Error(err)
	}
}

// TestManyAtOnce shares two workers and a few streams among many goroutines.
func TestManyAtOnce(t *testing.T) {
	c := newCoder(t, Options{Workers: 2})
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			names := []string{"bf16", "random", "zero", "fp32"}
			src := data()[names[g%4]][:100<<10+g]
			dst, back := make([]byte, len(src)), make([]byte, len(src))
			for i := range 6 {
				out, err := c.Encode(names[(g+i/3)%4], dst, src)
				if err != nil {
					t.Error(err)
					return
				}
				if out.Codec == None {
					continue
				}
				if err := c.Decode(out.Codec, back, dst[:out.Size]); err != nil || !bytes.Equal(back, src) {
					t.Errorf("wrong bytes came back, %v", err)
				}
			}
		})
	}
	all.Wait()
	var blocks, decoded uint64
	for _, s := range c.Stats().Codecs {
		blocks += s.Blocks
		decoded += s.Decoded
	}
	if blocks != 48 || decoded == 0 {
		t.Errorf("%d blocks, %d decoded: %+v", blocks, decoded, c.Stats())
	}
}

// TestNothingGrowsWithBlocks: a block costs no heap in proportion to its size.
// The bound allows for sync.Pool, which forgets at random under -race.
func TestNothingGrowsWithBlocks(t *testing.T) {
	c := newCoder(t, Options{Workers: 1})
	src := bf16Bytes(1 << 20)
	dst, back := make([]byte, len(src)), make([]byte, len(src))
	out, err := c.Encode("s", dst, src)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Decode(out.Codec, back, dst[:out.Size]); err != nil {
		t.Fatal(err)
	}
	const blocks = 5
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range blocks {
		if out, err = c.Encode("s", dst, src); err != nil {
			t.Fatal(err)
		}
		if err := c.Decode(out.Codec, back, dst[:out.Size]); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if got := int64(after.TotalAlloc-before.TotalAlloc) / blocks; got > int64(len(src)/8) {
		t.Errorf("%d bytes allocated for each block of %d", got, len(src))
	}
}
