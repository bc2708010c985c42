package remotebench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/cli"
	"cascadekv/internal/resp"
)

const (
	startPatience = 60 * time.Second
	answerWait    = 30 * time.Second
	leastMemory   = 64 << 20
)

// rank is a cascaded of a job of two. One goroutine uses it.
type rank struct {
	*kit.Process
	arena  string
	gossip string // where others join it
	client *resp.Client
}

// joined finds in a rank's log where others join it.
var joined = regexp.MustCompile(`msg=joined .*gossip=(\S+)`)

// start runs cascaded as rank number n with so much memory at least, joining those at
// seeds, and waits until it serves.
func start(ctx context.Context, dir string, n int, memory int64, seeds string) (r *rank, err error) {
	path, err := cli.Find("cascaded")
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", kit.ErrNoRank, err)
	}
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("a secret of a bench on loopback\n"), 0o600); err != nil {
		return nil, err
	}
	name := "rank" + strconv.Itoa(n)
	r = &rank{arena: filepath.Join("/dev/shm", filepath.Base(dir)+"."+name)}
	socket := filepath.Join(dir, name+".sock")
	r.Process, err = kit.Start("cascaded", io.Discard, exec.Command(path, "--rank", strconv.Itoa(n), "--socket", socket, "--listen=",
		"--shm-path", r.arena, "--shm-bytes", strconv.FormatInt(max(memory, leastMemory), 10), "--lustre-dir=", "--peers-fabric", "tcp",
		"--peers-listen", "127.0.0.1:0", "--peers-gossip", "127.0.0.1:0", "--peers-seeds", seeds, "--peers-secret-file", secret,
		"--peers-munge", "off", "--password-file=", "--admin-listen="))
	if err != nil {
		return nil, err
	}
	var refused error
	err = kit.Until(ctx, 20*time.Millisecond, startPatience, func() (bool, error) {
		if r.client == nil {
			r.client, refused = resp.Dial("unix", socket, answerWait)
		}
		if m := joined.FindStringSubmatch(r.Output()); m != nil {
			r.gossip = m[1]
		}
		return r.client != nil && r.gossip != "", r.Alive()
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: cascaded at %s: %w", kit.ErrStart, socket, err), refused, r.close())
	}
	return r, nil
}

func (r *rank) close() error {
	if r.client != nil {
		_ = r.client.Close() // nothing was left to say on it
	}
	err := r.Stop()
	return errors.Join(err, os.RemoveAll(r.arena))
}
