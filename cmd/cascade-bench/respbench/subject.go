package respbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/cli"
	"cascadekv/internal/nodeaddr"
	"cascadekv/internal/resp"
)

// subject is one server under test and its connections. It is used by one
// goroutine, which starts others for the length of a phase.
type subject struct {
	*kit.Process
	network, addr string
	version       string
	ids           bool // it completes ids after the acknowledgement: a rank
	control       *resp.Client
}

const (
	startPatience = 60 * time.Second // the kernel may have to find gigabytes for an arena
	quietPatience = 60 * time.Second
	quietWindow   = 60 * time.Millisecond
	controlWait   = 20 * time.Second
)

// startRedis runs redis-server without persistence, as a cache.
func startRedis(ctx context.Context, path, network, dir string, room int64) (*subject, error) {
	if path == "" {
		found, err := exec.LookPath("redis-server")
		if err != nil {
			return nil, fmt.Errorf("%w (%w)", ErrNoRedis, err)
		}
		path = found
	}
	s, err := newSubject(ctx, network, filepath.Join(dir, "redis.sock"))
	if err != nil {
		return nil, err
	}
	args := []string{"--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", dir,
		"--maxmemory", strconv.FormatInt(room, 10), "--maxmemory-policy", "noeviction"}
	if host, port, err := net.SplitHostPort(s.addr); err == nil {
		args = append(args, "--bind", host, "--port", port)
	} else {
		args = append(args, "--port", "0", "--unixsocket", s.addr)
	}
	return s, s.start(ctx, "redis-server", path, args)
}

// startRank runs cascaded without a lustre directory and with an arena of its
// own at the given path.
func startRank(ctx context.Context, network, dir, arena string, room int64) (*subject, error) {
	path, err := cli.Find("cascaded")
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", kit.ErrNoRank, err)
	}
	socket := filepath.Join(dir, "rank.sock")
	s, err := newSubject(ctx, network, socket)
	if err != nil {
		return nil, err
	}
	s.ids = true
	listen := "--listen="
	if network != "unix" {
		listen += s.addr
	}
	args := []string{"--socket", socket, listen, "--shm-path", arena, "--shm-bytes", strconv.FormatInt(room, 10),
		"--lustre-dir=", "--password-file=", "--admin-listen=", "--log-level", "warn"}
	if err := s.start(ctx, "cascaded", path, args); err != nil {
		return nil, err
	}
	return s, s.untilReserved(ctx, arena, room)
}

// newSubject is a server at the given socket, or at a TCP port that was free a
// moment ago.
func newSubject(ctx context.Context, network, socket string) (*subject, error) {
	if network == "unix" {
		return &subject{network: network, addr: socket}, nil
	}
	const host = "127.0.0.1"
	port, err := nodeaddr.FreePort(ctx, host, 0)
	if err != nil {
		return nil, fmt.Errorf("bench: find a free port: %w", err)
	}
	return &subject{network: network, addr: net.JoinHostPort(host, port)}, nil
}

// start runs the server and waits until it answers.
func (s *subject) start(ctx context.Context, name, path string, args []string) (err error) {
	if s.Process, err = kit.Start(name, io.Discard, exec.Command(path, args...)); err != nil {
		return err
	}
	var refused error
	err = kit.Until(ctx, 20*time.Millisecond, startPatience, func() (bool, error) {
		refused = s.greet()
		return refused == nil, s.Alive()
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %s does not answer at %s: %w: %w", kit.ErrStart, name, s.addr, err, refused), s.close())
	}
	return nil
}

// greet connects and asks who is there.
func (s *subject) greet() error {
	c, err := resp.Dial(s.network, s.addr, controlWait)
	if err != nil {
		return err
	}
	info, err := c.Do("INFO", "server")
	if err != nil {
		return errors.Join(err, c.Close())
	}
	s.control = c
	for line := range strings.Lines(info.Text()) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if key == "redis_version" && !s.ids || key == "cascade_version" {
			s.version = value
		}
	}
	return nil
}

// untilReserved waits until the file system has committed the whole arena.
func (s *subject) untilReserved(ctx context.Context, arena string, room int64) error {
	err := kit.Until(ctx, 20*time.Millisecond, startPatience, func() (bool, error) {
		return reserved(arena) >= room/4096*4096, s.Alive()
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%w: the arena %s is not reserved: %w", kit.ErrStart, arena, err), s.close())
	}
	return nil
}

// reserved is how many bytes of a file the file system has committed.
func reserved(path string) int64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// rest waits until the server is quiet and returns the CPU time it has used.
func (s *subject) rest(ctx context.Context) (now time.Duration, err error) {
	before := time.Duration(-1)
	err = kit.Until(ctx, quietWindow, quietPatience, func() (quiet bool, err error) {
		if now, err = s.CPU(); err != nil {
			return false, errors.Join(err, s.Alive())
		}
		pending, err := s.pending()
		// Housekeeping of either server may show as one tick.
		quiet = before >= 0 && now-before <= kit.Tick && pending == 0
		before = now
		return quiet, err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("%w: %s", ErrNotQuiet, s.Name)
	}
	return now, err
}

// pending is how many ids the server has still to compute.
func (s *subject) pending() (int, error) {
	if !s.ids {
		return 0, nil
	}
	r, err := s.control.Do("CASCADE.STATS")
	if err != nil {
		return 0, fmt.Errorf("bench: %s: %w", s.Name, err)
	}
	var stats struct {
		PendingIDs int `json:"pending_ids"`
	}
	if err := json.Unmarshal(r.Str, &stats); err != nil {
		return 0, fmt.Errorf("bench: CASCADE.STATS: %w", err)
	}
	return stats.PendingIDs, nil
}

func (s *subject) close() error {
	if s.control != nil {
		_ = s.control.Close() // nothing was left to say on it
	}
	return s.Stop()
}
