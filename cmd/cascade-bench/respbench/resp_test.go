package respbench

import (
	"context"
	"errors"
	"testing"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/need"
)

// twoRedis starts redis-server twice: a rank's side that is known to work.
func twoRedis(t *testing.T, network string) (a, b *subject) {
	t.Helper()
	path := need.Program(t, "redis-server", "apt-get install redis-server")
	start := func() *subject {
		s, err := startRedis(t.Context(), path, network, t.TempDir(), 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	return start(), start()
}

func TestCompareRedisWithItself(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			a, b := twoRedis(t, network)
			rounds := 0
			o := Options{Size: 256 << 10, Conns: []int{1, 3}, Rounds: 2, Budget: 20 * time.Millisecond, Network: network, Verify: true,
				Progress: func(done, total int) {
					if rounds++; done != rounds || total != 4 {
						t.Errorf("progress says %d of %d, want %d of 4", done, total, rounds)
					}
				}}.withDefaults()
			v, err := kit.NewValues(o.count(), o.Size)
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			res, err := compare(t.Context(), o, v, a, b)
			if err != nil {
				t.Fatal(err)
			}
			if len(res.Settings) != 4 || rounds != 4 || res.Redis == "" {
				t.Fatalf("got %d settings, %d rounds, version %q", len(res.Settings), rounds, res.Redis)
			}
			for _, s := range res.Settings {
				if s.Rank.MBps <= 0 || s.Redis.MBps <= 0 || len(s.Ratios) != 2 || s.Operations%s.Conns != 0 {
					t.Errorf("%+v", s)
				}
			}
			if res.RatioSet1 <= 0 || res.RatioGet1 <= 0 || res.RatioSet != 0 {
				t.Errorf("ratios at 1: %v %v, at 8: %v", res.RatioSet1, res.RatioGet1, res.RatioSet)
			}
			size, err := a.control.Do("DBSIZE")
			if err != nil || size.Int != 0 {
				t.Errorf("%d values are left behind, %v", size.Int, err)
			}
		})
	}
}

func TestWrongBytesAreNoticed(t *testing.T) {
	a, _ := twoRedis(t, "unix")
	v, err := kit.NewValues(4, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	l, err := newLoad(a, v, 4, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if _, err := l.run(t.Context(), opSet, 4); err != nil {
		t.Fatal(err)
	}
	if _, err := l.run(t.Context(), opGet, 4); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.check(), l.checkAll(t.Context())); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"a byte is other":  {"SETRANGE", l.keys[3], "4095", "\x00"},
		"an older value":   {"SET", l.keys[3], string(make([]byte, 4096))},
		"another length":   {"APPEND", l.keys[3], "x"},
		"shorter than one": {"SET", l.keys[3], ""},
	} {
		t.Run(name, func(t *testing.T) {
			v.At(3)[4095] |= 2
			kit.Stamp(v.At(3), l.last[3])
			if err := l.conns[0].client.Set(l.keys[3], v.At(3)); err != nil {
				t.Fatal(err)
			}
			if _, err := l.conns[0].client.Do(args...); err != nil {
				t.Fatal(err)
			}
			if err := l.checkAll(t.Context()); err == nil {
				t.Error("nothing noticed")
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	a, _ := twoRedis(t, "unix")
	v, err := kit.NewValues(1, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	l, err := newLoad(a, v, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if _, err := a.control.Do("CLIENT", "PAUSE", "100000"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.run(ctx, opSet, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the end of the context", err)
	}
}

func TestRESPRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		want error
	}{
		"network":        {Options{Network: "carrier pigeon"}, kit.ErrBadOption},
		"connections":    {Options{Conns: []int{0}}, kit.ErrBadOption},
		"tiny values":    {Options{Size: 8}, kit.ErrTooSmall},
		"rounds":         {Options{Rounds: -1}, kit.ErrBadOption},
		"no such redis":  {Options{RedisBinary: "/nonexistent"}, kit.ErrStart},
		"redis gives up": {Options{RedisBinary: "/bin/false"}, kit.ErrStart},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Run(t.Context(), c.o); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	t.Run("nothing installed", func(t *testing.T) {
		t.Setenv("PATH", "")
		if _, err := Run(t.Context(), Options{}); !errors.Is(err, ErrNoRedis) {
			t.Errorf("got %v, want %v", err, ErrNoRedis)
		}
	})
}
