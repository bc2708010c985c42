package simulate

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"cascadekv/internal/trace"
)

func spoolOf(t *testing.T, requests []trace.Request) *spool {
	t.Helper()
	s, err := newSpool(t.Context(), &list{requests: requests}, 0, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() }) // nothing was to be kept
	if err := s.linkUses(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// nextUses finds by search which request asks for a block next.
func nextUses(requests []trace.Request, from int, hash uint64) uint32 {
	for i := from + 1; i < len(requests); i++ {
		if slices.Contains(requests[i].Hashes, hash) {
			return uint32(i)
		}
	}
	return never
}

func TestSpoolKeepsTheTrace(t *testing.T) {
	requests := chains(1, 60, 300)
	requests[10].Hashes, requests[10].InputTokens = nil, 0
	requests[20].Timestamp = 0 // earlier than the one before it
	s := spoolOf(t, requests)
	in := s.read(true)
	hashes := map[uint32]uint64{}
	last := time.Duration(0)
	for i, want := range requests {
		r, err := in.advance()
		if err != nil {
			t.Fatal(err)
		}
		if r.tokens != want.InputTokens || len(r.blocks) != len(want.Hashes) || r.at < last {
			t.Fatalf("request %d is %+v, want %+v", i, r, want)
		}
		if i != 20 && r.at != time.Duration(want.Timestamp-requests[0].Timestamp)*time.Millisecond {
			t.Errorf("request %d comes at %s, want %d ms after %d", i, r.at, want.Timestamp, requests[0].Timestamp)
		}
		last = r.at
		for j, b := range r.blocks {
			if h, ok := hashes[b]; ok && h != want.Hashes[j] {
				t.Fatalf("number %d stands for %d and %d", b, h, want.Hashes[j])
			}
			hashes[b] = want.Hashes[j]
			if use := nextUses(requests, i, want.Hashes[j]); r.next[j] != use {
				t.Fatalf("request %d, block %d: next use %d, want %d", i, j, r.next[j], use)
			}
		}
	}
	if _, err := in.advance(); err != io.EOF {
		t.Errorf("after the last request: %v", err)
	}
	if s.unique != len(hashes) {
		t.Errorf("%d distinct blocks, want %d", s.unique, len(hashes))
	}
}

// TestSpoolOfManyParts: records that are longer than the parts in which the file is read
// backward, and many that are shorter, are all linked.
func TestSpoolOfManyParts(t *testing.T) {
	long := make([]uint64, 5*spoolBuffer/(2*wordBytes))
	for i := range long {
		long[i] = uint64(i)
	}
	var requests []trace.Request
	for i := range 40 {
		requests = append(requests, trace.Request{Hashes: long[:1+i*7919]})
	}
	requests = append(requests, trace.Request{Hashes: long}, trace.Request{Hashes: long}, trace.Request{Hashes: long[:1]})
	s := spoolOf(t, requests)
	in := s.read(true)
	for i := range requests {
		r, err := in.advance()
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range []int{0, len(r.blocks) - 1} {
			if use := nextUses(requests, i, requests[i].Hashes[j]); r.next[j] != use {
				t.Errorf("request %d, block %d: next use %d, want %d", i, j, r.next[j], use)
			}
		}
	}
}

func TestSpoolLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s, err := newSpool(t.Context(), &list{requests: chains(1, 10, 10)}, 0, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	if _, err := newSpool(t.Context(), &list{}, 0, dir+"/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newSpool(ctx, &list{requests: chains(1, 10, 10)}, 0, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
