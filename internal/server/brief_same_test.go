package server

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/testing/noise"
)

// briefStream returns commands on keys with a prefix: runs of brief ones, and others.
func briefStream(seed uint64, prefix string) (commands []string) {
	rng := rand.New(rand.NewPCG(seed, 1))
	value := func(sizes ...int) string {
		return string(noise.Bytes(rng.Uint64(), sizes[rng.IntN(len(sizes))]))
	}
	small := func() string { return value(0, 1, 100, 4096, briefBytes) }
	key := func() string {
		return fmt.Sprint(prefix, rng.IntN(9), []string{"", "", "kv_bytes", "metadata"}[rng.IntN(4)])
	}
	for run := range 12 {
		for range 10 {
			commands = append(commands, command("SET", key(), small()), command("GET", key()))
		}
		if run%2 == 1 {
			commands = append(commands, command("SET", key(), value(briefBytes+1, 30_000)), command("DEL", key()), command("EXISTS", key(), key()),
				command("set", key(), small(), "nx"), command("SET", key(), small(), "EX", "no"), command("GET", strings.Repeat("k", 1025)), command("PING", small()))
		}
		for i := range 9 {
			commands = append(commands, command("SET", prefix+fmt.Sprint(i), "x"), command("SET", prefix+fmt.Sprint(i)+"kv_bytes", "x"), command("SET", prefix+fmt.Sprint(i)+"metadata", "x"))
		}
		for range 40 {
			commands = append(commands, command("SET", key(), small()), command("get", key()), command("EXISTS", key()))
		}
	}
	return commands
}

// TestBriefSame: whoever answers, the answers to a stream of commands are the same bytes, and
// what is counted is the same.
func TestBriefSame(t *testing.T) {
	for seed, prefix := range []string{"k", "lm@model@0@", "m@w@"} {
		streams := briefStream(uint64(seed), prefix)
		answers := map[bool]string{}
		stats := map[bool]cascade.Stats{}
		for _, single := range []bool{true, false} {
			r := newRig(t, 64<<20, func(o *Options) { o.Limits.FixedMiss = true })
			x := r.talk("tcp")
			x.ask("+OK\r\n", "SET", prefix+"0", strings.Repeat("x", 16<<20)) // memory is there
			x.ask(":1\r\n", "DEL", prefix+"0")
			x.ask("+OK\r\n", "SET", prefix+"last", "last one")
			end := command("GET", prefix+"last")
			go func() {
				if !single { // together: the poller takes none
					_, _ = x.nc.Write([]byte(strings.Join(streams, "") + end))
				}
			}()
			var all strings.Builder
			for at := 0; single && at < len(streams); at++ {
				if at%8 == 0 {
					time.Sleep(time.Millisecond) // for the goroutine to delegate
				}
				if _, err := x.nc.Write([]byte(streams[at])); err != nil {
					t.Fatal(err)
				}
				all.WriteString(x.answer())
			}
			if single {
				_, _ = x.nc.Write([]byte(end))
			}
			for !strings.HasSuffix(all.String(), "$8\r\nlast one\r\n") {
				all.WriteString(x.answer())
			}
			answers[single], stats[single] = all.String(), r.store.Stats()
			if n := r.srv.counters.polled.Load(); single == (n < 50) {
				t.Errorf("%s: the poller answered %d commands", prefix, n)
			}
		}
		if answers[true] != answers[false] {
			t.Errorf("%s: %d bytes of answers one by one, %d together, or not the same", prefix, len(answers[true]), len(answers[false]))
		}
		a, b := stats[true], stats[false]
		count := func(s cascade.Stats) []uint64 {
			return []uint64{s.Puts, s.Hits, s.Misses, s.Lookups, s.Found, s.Rejected, uint64(s.Leases), uint64(s.Names)}
		}
		if fmt.Sprint(count(a)) != fmt.Sprint(count(b)) {
			t.Errorf("%s: %d are counted one by one, %d together", prefix, count(a), count(b))
		}
	}
}

// answer reads one answer, whatever it is.
func (x *talk) answer() string {
	x.t.Helper()
	line, err := x.rd.ReadString('\n')
	if err != nil {
		x.t.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscanf(line, "$%d\r\n", &n); err != nil || n < 0 {
		return line
	}
	p := make([]byte, n+2)
	for at := 0; at < len(p); {
		k, err := x.rd.Read(p[at:])
		if err != nil {
			x.t.Fatal(err)
		}
		at += k
	}
	return line + string(p)
}
