package breaker

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/vfs"
)

// clock is the time of a test, in milliseconds from its start.
type clock int64

func at(ms clock) time.Time {
	return time.Unix(1800000000, 0).Add(time.Duration(ms) * time.Millisecond)
}

// TestBreakerOfOneFile tells stories of one file: what happens when, and whether
// a read is tried then.
func TestBreakerOfOneFile(t *testing.T) {
	type step struct {
		ms   clock
		does string // "try" and "no": a read is tried or refused; "good", "bad", "ended": the oldest ends so
	}
	for name, story := range map[string][]step{
		"two failures are not enough": {
			{0, "try"}, {10, "bad"}, {20, "try"}, {30, "bad"}, {40, "try"}, {50, "good"}, {60, "try"}},
		"three are, and the pause doubles": {
			{0, "try"}, {10, "bad"}, {20, "try"}, {30, "bad"}, {40, "try"}, {50, "bad"},
			{60, "no"}, {1049, "no"}, {1050, "try"}, {1060, "bad"}, {3059, "no"}, {3060, "try"}, {3070, "bad"},
			{7069, "no"}, {7070, "try"}},
		"a pause has an end": {
			{0, "try"}, {1, "bad"}, {2, "try"}, {3, "bad"}, {4, "try"}, {5, "bad"}, {2000, "try"}, {2001, "bad"},
			{10000, "try"}, {10001, "bad"}, {20000, "try"}, {20001, "bad"}, {40000, "try"}, {40001, "bad"},
			{80000, "try"}, {80001, "bad"}, {110000, "no"}, {110001, "try"}},
		"one at a time is tried after the pause, and an answer ends it": {
			{0, "try"}, {10, "bad"}, {20, "try"}, {30, "bad"}, {40, "try"}, {50, "bad"},
			{1050, "try"}, {1060, "no"}, {1070, "good"}, {1080, "try"}, {1081, "try"}},
		"failures at the same time are one": {
			{0, "try"}, {0, "try"}, {0, "try"}, {0, "try"}, {10, "bad"}, {11, "bad"}, {12, "bad"}, {13, "bad"}, {14, "try"}},
		"one that hangs keeps the others out until it ends": {
			{0, "try"}, {999, "try"}, {1000, "no"}, {60000, "no"}, {60001, "good"}, {60002, "try"}, {60003, "good"}, {60004, "try"}},
		"a slow one of many is let be": {
			{0, "try"}, {900, "try"}, {950, "last good"}, {1500, "try"}},
		"several that hang are not, though others are answered": {
			{0, "try"}, {0, "try"}, {0, "try"}, {0, "try"}, {900, "try"}, {950, "last good"}, {1500, "no"}, {1600, "good"}, {1700, "try"}},
		"who leaves early says nothing": {
			{0, "try"}, {10, "ended"}, {20, "try"}, {30, "ended"}, {40, "try"}, {50, "ended"}, {60, "try"}},
		"who leaves late says that it hung": {
			{0, "try"}, {1100, "ended"}, {1200, "try"}, {2300, "ended"}, {2400, "try"}, {3500, "ended"}, {3600, "no"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBreaker(64, 8)
			c := b.file("f")
			var flights []*flight
			end := func(i int, now time.Time, o outcome) {
				b.end(c, flights[i], now, o)
				flights = append(flights[:i], flights[i+1:]...)
			}
			for _, s := range story {
				now := at(s.ms)
				switch s.does {
				case "good":
					end(0, now, answered)
				case "last good":
					end(len(flights)-1, now, answered)
				case "bad":
					end(0, now, silent)
				case "ended":
					end(0, now, cancelled)
				default:
					r := b.mayRead(c, "f", now)
					if (r == nil) != (s.does == "try") {
						t.Fatalf("at %d ms: refusal %v, want %q", s.ms, r, s.does)
					}
					if r == nil {
						flights = append(flights, b.begin(c, now, 0))
					}
				}
			}
		})
	}
}

// TestBreakerLargeReads: what takes longer has longer.
func TestBreakerLargeReads(t *testing.T) {
	b := newBreaker(64, 8)
	c := b.file("f")
	b.begin(c, at(0), 512<<20)
	if r := b.mayRead(c, "f", at(11000)); r != nil {
		t.Errorf("a read of 512 MiB counts as hanging after 11 s: %v", r)
	}
	if r := b.mayRead(c, "f", at(12000)); r == nil {
		t.Error("a read of 512 MiB may take 12 s")
	}
}

// TestBreakerOfManyFiles: a server that is gone holds a sixteenth of all files.
// Reads of each of them hang, until half of the readers do. From then on files
// that answer are read, and one other at a time.
func TestBreakerOfManyFiles(t *testing.T) {
	const readers, files = 16, 400
	b := newBreaker(readers, 8)
	dead := func(i int) bool { return i%16 == 0 }
	name := func(i int) string { return fmt.Sprint("file ", i) }
	var served, most int
	for round := range clock(60) { // of 100 ms
		now := at(round * 100)
		for i := range files {
			c := b.file(name(i))
			if hangs, _ := b.reading.hanging(now); len(b.reading.flights)-hangs >= readers || b.mayRead(c, name(i), now) != nil {
				continue
			}
			f := b.begin(c, now, 0)
			if !dead(i) {
				b.end(c, f, now.Add(time.Millisecond), answered)
				served++
			}
		}
		most = max(most, len(b.reading.flights))
	}
	t.Logf("6 s: %d reads served of %d that can be, %d hang", served, 60*files*15/16, most)
	// The first 240 that can be were read before the readers hung; the others
	// are tried one after the other, and each that hangs costs a second.
	if served < 49*240 {
		t.Errorf("%d reads served", served)
	}
	if most > 2*readers {
		t.Errorf("%d reads hang, more than twice the readers", most)
	}
}

// TestBreakerOfWrites: a new segment is tried while an old one hangs, more and
// more seldom if that hangs too, and never with the last writer.
func TestBreakerOfWrites(t *testing.T) {
	b := newBreaker(64, 8)
	begin := func(ms clock) *flight {
		t.Helper()
		if r := b.mayWrite(at(ms)); r != nil {
			t.Fatalf("at %d ms: %v", ms, r)
		}
		return b.begin(nil, at(ms), 0)
	}
	first := begin(0)
	second := begin(1000) // the first hangs: another file is tried, once
	if r := b.mayWrite(at(1100)); r == nil {
		t.Error("two are tried at once")
	}
	b.end(nil, second, at(1200), answered)
	for ms := clock(1300); ms < 1400; ms += 10 {
		b.end(nil, begin(ms), at(ms+5), answered)
	}
	b.end(nil, first, at(1500), silent)
	tried := 0
	for ms := clock(2000); ms < 600000; ms += 100 { // now all hang
		if b.mayWrite(at(ms)) == nil {
			b.begin(nil, at(ms), 0)
			tried++
		}
	}
	if hangs, _ := b.writing.hanging(at(600000)); tried < 8 || hangs > 40 {
		t.Errorf("%d tried in 10 minutes, %d hang", tried, hangs)
	}
	if h := b.health(at(600000)); !h.Writes || h.Refused < 5000 {
		t.Errorf("health %+v", h)
	}
	for f := range b.writing.flights {
		b.end(nil, f, at(600001), answered)
	}
	if r := b.mayWrite(at(600002)); r != nil {
		t.Errorf("when all have ended: %v", r)
	}
}

// TestJudge: what says no has answered; a name says nothing of the bytes.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		op   vfs.Op
		err  error
		want outcome
	}{
		{vfs.OpRead, nil, answered}, {vfs.OpSync, nil, answered}, {vfs.OpSize, nil, answered},
		{vfs.OpCreate, nil, unknown}, {vfs.OpOpen, nil, unknown}, {vfs.OpRename, nil, unknown}, {vfs.OpWrite, nil, unknown},
		{vfs.OpWrite, vfs.ErrNoSpace, answered}, {vfs.OpWrite, vfs.ErrQuota, answered}, {vfs.OpOpen, os.ErrNotExist, answered},
		{vfs.OpRead, io.ErrUnexpectedEOF, answered},
		{vfs.OpWrite, vfs.ErrIO, silent}, {vfs.OpRead, vfs.ErrStale, silent}, {vfs.OpSync, syscall.ESHUTDOWN, silent},
		{vfs.OpCreate, syscall.ETIMEDOUT, silent}, {vfs.OpRead, syscall.ENOTCONN, silent},
		{vfs.OpRead, context.Canceled, cancelled}, {vfs.OpRead, context.DeadlineExceeded, cancelled},
	} {
		if got := judge(c.op, c.err); got != c.want {
			t.Errorf("%s, %v: %d, want %d", c.op, c.err, got, c.want)
		}
	}
}
