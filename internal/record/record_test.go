package record

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/block"
	"cascadekv/internal/replay"
	"cascadekv/internal/resp"
	"cascadekv/internal/server"
	"cascadekv/internal/trace"
	"cascadekv/internal/trace/stats"
	"cascadekv/tiers"
	"cascadekv/tiers/shm"
)

// rig is a rank with one tier of memory, in this process.
type rig struct {
	t      *testing.T
	socket string
	store  *cascade.Store
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, socket: filepath.Join(t.TempDir(), "s")}
	dir, err := os.MkdirTemp("/dev/shm", "cascade-record-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	mem, err := shm.Open(filepath.Join(dir, "a"), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	if r.store, err = cascade.Open(t.Context(), cascade.Options{Memory: []tiers.Memory{mem}, Log: quiet}); err != nil {
		t.Fatal(err)
	}
	srv, err := server.New(server.Options{Store: r.store, Socket: r.socket, Version: "test", Log: quiet, Limits: server.Limits{MaxConnections: 100, Lease: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for _, err := range []error{srv.Shutdown(ctx), <-served, r.store.Close(ctx)} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

func (r *rig) client() *resp.Client {
	r.t.Helper()
	c, err := resp.Dial("unix", r.socket, 20*time.Second)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

// recording is a recording under way, and then its file.
type recording struct {
	file   bytes.Buffer
	result Result
	err    error
	end    func()
}

// record begins to record.
func (r *rig) record(o Options) *recording {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	rec := &recording{}
	rec.end = func() {
		cancel()
		all.Wait()
	}
	r.t.Cleanup(rec.end)
	o.Client = r.client()
	w := trace.NewWriter(&rec.file)
	o.Write = w.Write
	started := make(chan struct{})
	o.Started = func() { close(started) }
	all.Go(func() {
		rec.result, rec.err = Run(ctx, o)
		_ = w.Close()
	})
	<-started
	return rec
}

func (rec *recording) requests(t *testing.T, blockTokens int) (all []trace.Request) {
	t.Helper()
	src := source(t, rec.file.Bytes(), blockTokens)
	for {
		var q trace.Request
		switch err := src.Next(&q); err {
		case nil:
			all = append(all, q)
		case io.EOF:
			if a := src.Assumed(); a != (trace.Assumed{}) {
				t.Errorf("the trace leaves open: %v", a)
			}
			return all
		default:
			t.Fatal(err)
		}
	}
}

func source(t *testing.T, text []byte, blockTokens int) *trace.Reader {
	t.Helper()
	src, err := trace.NewReader(bytes.NewReader(text), "recorded", trace.ReaderOptions{BlockTokens: blockTokens, Form: trace.Mooncake})
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// replayed sends a made trace to the rank and returns its text and requests.
func (r *rig) replayed(o trace.SynthOptions, workers int) (text []byte, all []trace.Request) {
	r.t.Helper()
	var file bytes.Buffer
	w := trace.NewWriter(&file)
	made, err := trace.NewSynth(o)
	if err != nil {
		r.t.Fatal(err)
	}
	for {
		var q trace.Request
		if err := made.Next(&q); err == io.EOF {
			break
		} else if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, q)
		if err := w.Write(&q); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		r.t.Fatal(err)
	}
	results, err := replay.Run(r.t.Context(), replay.Options{
		Trace: func() (trace.Source, error) { return source(r.t, file.Bytes(), 0), nil },
		NewTarget: func(context.Context, string) (replay.Target, error) {
			return replay.NewLiveTarget(replay.LiveOptions{Network: "unix", Addr: r.socket, BlockBytes: 512}), nil
		},
		BlockBytes: 512, Workers: workers,
	})
	if err != nil || results[0].WrongBytes != 0 {
		r.t.Fatal(err, results)
	}
	return file.Bytes(), all
}

// sameChains fails unless one trace has the other's requests, but for the names of blocks.
func sameChains(t *testing.T, got, want []trace.Request) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d requests are recorded of %d", len(got), len(want))
	}
	to, from := map[uint64]uint64{}, map[uint64]uint64{}
	for i := range want {
		if len(got[i].Hashes) != len(want[i].Hashes) {
			t.Fatalf("request %d has %d blocks, want %d", i, len(got[i].Hashes), len(want[i].Hashes))
		}
		for j, g := range got[i].Hashes {
			w := want[i].Hashes[j]
			if a, ok := to[g]; ok && a != w {
				t.Fatalf("request %d, block %d: one id is of two blocks", i, j)
			}
			if a, ok := from[w]; ok && a != g {
				t.Fatalf("request %d, block %d: one block has two ids", i, j)
			}
			to[g], from[w] = w, g
		}
	}
}

func measured(t *testing.T, text []byte) stats.Stats {
	t.Helper()
	s, err := stats.Measure(source(t, text, 0), stats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRecordsWhatIsReplayed: what a replay asks of a rank is recorded as the requests that it
// replays, by two recorders at once, whose salts differ.
func TestRecordsWhatIsReplayed(t *testing.T) {
	r := newRig(t)
	salts := []string{"a salt of sixteen bytes", "another one of these"}
	recs := make([]*recording, len(salts))
	for i, salt := range salts {
		recs[i] = r.record(Options{Salt: []byte(salt), BlockTokens: trace.BlockTokens, OutputTokens: 1})
	}
	text, want := r.replayed(trace.SynthOptions{Requests: 300, SystemPrompts: 5}, 1)
	for _, rec := range recs {
		rec.end()
		if rec.err != nil || rec.result.Requests != len(want) || rec.result.Assumed != len(want) || rec.result.Dropped+uint64(rec.result.Cut+rec.result.Headless) != 0 {
			t.Errorf("%+v, %v", rec.result, rec.err)
		}
		sameChains(t, rec.requests(t, 0), want)
		a, b := measured(t, rec.file.Bytes()), measured(t, text)
		if a.HitRatioBlocks != b.HitRatioBlocks || a.UniqueBlocks != b.UniqueBlocks || a.HitRatioBlocks == 0 {
			t.Errorf("ideal hits %v of %d distinct blocks, want %v of %d", a.HitRatioBlocks, a.UniqueBlocks, b.HitRatioBlocks, b.UniqueBlocks)
		}
	}
	one := map[uint64]bool{}
	for _, q := range recs[0].requests(t, 0) {
		for _, h := range q.Hashes {
			one[h] = true
		}
	}
	for _, q := range recs[1].requests(t, 0) {
		for _, h := range q.Hashes {
			if one[h] {
				t.Fatal("recordings of two salts share an id")
			}
		}
	}
}

// TestConcurrentEngines: several connections of one process at once.
func TestConcurrentEngines(t *testing.T) {
	r := newRig(t)
	rec := r.record(Options{Salt: []byte("s"), BlockTokens: trace.BlockTokens, OutputTokens: 1})
	text, want := r.replayed(trace.SynthOptions{Requests: 300, SystemPrompts: 5}, 4)
	rec.end()
	a, b := measured(t, rec.file.Bytes()), measured(t, text)
	if rec.err != nil || a.Requests != len(want) || a.UniqueBlocks != b.UniqueBlocks || a.Blocks != b.Blocks {
		t.Errorf("%d requests, %d blocks, %d distinct; want %d, %d, %d; %v", a.Requests, a.Blocks, a.UniqueBlocks, len(want), b.Blocks, b.UniqueBlocks, rec.err)
	}
}

// TestNothingOfKeysIsWritten: neither keys nor namespaces nor their fingerprints are in the file.
func TestNothingOfKeysIsWritten(t *testing.T) {
	r := newRig(t)
	rec := r.record(Options{Salt: []byte("s"), BlockTokens: 16, OutputTokens: 1})
	c := r.client()
	for _, words := range [][]string{
		{"CASCADE.LAYOUT", "secret-model", "TOKENS", "64"}, {"CASCADE.CONTAINS", "secret-model", "secret-a", "secret-b"},
		{"CASCADE.PUT", "secret-a", "value-a", "NS", "secret-model"}, {"CASCADE.PUT", "secret-b", "value-b", "NS", "secret-model", "PARENT", "secret-a"},
	} {
		if _, err := c.Do(words...); err != nil {
			t.Fatal(err)
		}
	}
	rec.end()
	all := rec.requests(t, 64)
	if len(all) != 1 || all[0].InputTokens != 128 || rec.result.BlockTokens != 64 || rec.result.Assumed != 0 {
		t.Errorf("%+v, %+v", all, rec.result)
	}
	text := rec.file.String()
	for _, word := range []string{"secret", "model", "value", "redis"} {
		if strings.Contains(text, word) {
			t.Errorf("%q is in %s", word, text)
		}
	}
	for _, f := range block.Fingerprints("secret-model", "secret-a", "secret-b") {
		for _, q := range all {
			for _, h := range q.Hashes {
				if h == f || h == f>>1 {
					t.Error("an id is a fingerprint")
				}
			}
		}
	}
}

// TestSlowReader: what a reader is too slow for is lost and counted, and nobody waits for it.
func TestSlowReader(t *testing.T) {
	r := newRig(t)
	c, reader := r.client(), r.client()
	first, err := reader.Do("CASCADE.TRAFFIC", "0")
	if err != nil {
		t.Fatal(err)
	}
	since, _, _, err := parse(first)
	if err != nil {
		t.Fatal(err)
	}
	const each = 1 << 13
	keys := make([]string, 0, each+2)
	keys = append(keys, "CASCADE.CONTAINS", "ns")
	for i := range each {
		keys = append(keys, fmt.Sprint(i))
	}
	const commands = 1<<20/each + 10 // ten more than are kept
	for range commands {
		if _, err := c.Do(keys...); err != nil {
			t.Fatal(err)
		}
	}
	var res Result
	rec := &recorder{o: Options{Client: reader}, tokens: map[string]int{}, result: res}
	rec.merger = NewMerger(func(*Request) {})
	if _, n, err := rec.ask(since, 0); err != nil || rec.result.Dropped != 10 || n != commands-10 {
		t.Errorf("%d commands are read and %d dropped, %v; want %d and 10", n, rec.result.Dropped, err, commands-10)
	}
}

// TestEnds: a recording ends by itself after a time, and after as many requests as are wanted.
func TestEnds(t *testing.T) {
	r := newRig(t)
	o := Options{Client: r.client(), For: time.Millisecond, Write: func(*trace.Request) error { return nil }}
	if res, err := Run(t.Context(), o); err != nil || res.Requests != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	rec := r.record(Options{Salt: []byte("s"), BlockTokens: 1, Requests: 3})
	c := r.client()
	for i := range 5 {
		if _, err := c.Do("CASCADE.PROBE", "ns", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	rec.end()
	if rec.err != nil || rec.result.Requests != 3 {
		t.Errorf("%+v, %v", rec.result, rec.err)
	}
}
