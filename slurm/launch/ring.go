package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/procfs"

	"cascadekv/dht"
	"cascadekv/internal/resp"
)

// ErrRing means that the ranks did not become one cache in time, or ended before.
var ErrRing = errors.New("launch: the ranks are not all there")

const (
	lookPeriod  = 50 * time.Millisecond // between looks at the ring, at least
	lookRest    = 4                     // so many times as long as the last look took: ranks that start have more to do
	lookTimeout = 5 * time.Second       // of one answer: the rank asks all others
)

// ask reads a rank's answer in JSON.
func ask(client *resp.Client, command string, v any) error {
	reply, err := client.Do(command)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(reply.Str, v); err != nil {
		return fmt.Errorf("the answer to %s: %w", command, err)
	}
	return nil
}

// look asks this node's rank how many ranks there are, and whether each of them sees
// them all. Outside Slurm it is enough that it answers. An error is that of a rank
// that does not serve yet, or of one that serves since before began: another one.
func (p *Plan) look(client *resp.Client, began time.Time) (alive map[int]bool, whole bool, err error) {
	alive = map[int]bool{}
	if p.Place.Job == nil {
		_, err := client.Do("PING")
		alive[p.Place.Rank] = err == nil
		return alive, err == nil, err
	}
	var stats struct {
		Uptime float64 `json:"uptime_seconds"`
	}
	if err := ask(client, "CASCADE.STATS", &stats); err != nil {
		return nil, false, err
	}
	if uptime := time.Duration(stats.Uptime * float64(time.Second)); uptime > time.Since(began) {
		return nil, false, fmt.Errorf("another rank has served %s for %v", p.Config.Socket, uptime)
	}
	var ranks []dht.RankStatus
	if err := ask(client, "CASCADE.RANKS", &ranks); err != nil {
		return nil, false, err
	}
	n := len(p.Place.Nodes)
	whole = len(ranks) == n
	for _, r := range ranks {
		var report struct {
			Peers struct {
				Ranks int `json:"ranks"`
			} `json:"peers"`
		}
		if r.State != "alive" || json.Unmarshal(r.Report, &report) != nil {
			whole = false
			continue
		}
		alive[int(r.Rank)] = true
		whole = whole && report.Peers.Ranks == n
	}
	return alive, whole, nil
}

// vacant checks that no rank has this node's socket yet.
func (p *Plan) vacant() error {
	conn, err := net.DialTimeout("unix", p.Config.Socket, lookTimeout)
	if err != nil {
		return nil
	}
	_ = conn.Close() // nothing was sent
	return fmt.Errorf("%w: another rank serves %s: stop that one, or choose another socket", ErrRing, p.Config.Socket)
}

// dial connects to the rank of this node that r has started. Outside Slurm it is a child of this
// process: another one that has the socket is refused, however short a time it has had it.
func (r *ranks) dial() (*resp.Client, error) {
	p := r.plan
	password, err := p.Config.Password()
	if err != nil {
		return nil, err
	}
	conn, err := net.DialTimeout("unix", p.Config.Socket, lookTimeout)
	if err != nil {
		return nil, fmt.Errorf("launch: %w", err)
	}
	err = resp.CheckServer(conn, p.Config.ServerUIDs...)
	if err == nil && p.Place.Job == nil {
		err = servedBelow(conn.(*net.UnixConn), r.cmd.Process.Pid)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	client := resp.NewClient(conn, lookTimeout)
	if password != "" {
		if _, err := client.Do("AUTH", password); err != nil {
			return nil, errors.Join(err, client.Close())
		}
	}
	return client, nil
}

// servedBelow checks that a process, or one below it, listens at the other end.
func servedBelow(conn *net.UnixConn, process int) error {
	cred, err := resp.ServerCred(conn)
	if err != nil {
		return fmt.Errorf("launch: who serves %s: %w", conn.RemoteAddr(), err)
	}
	for pid := int(cred.Pid); pid != process; {
		proc, err := procfs.NewProc(pid) // 0 is no process: it is none of this namespace
		stat := procfs.ProcStat{}
		if err == nil {
			stat, err = proc.Stat()
		}
		if pid = stat.PPID; err != nil || pid == 0 {
			return fmt.Errorf("launch: process %d serves %s, which is another rank's: stop that one, or choose another socket", cred.Pid, conn.RemoteAddr())
		}
	}
	return nil
}

// await waits until the ring of r, which was started after began, is whole; progress gets a line for each
// change.
func (r *ranks) await(ctx context.Context, began time.Time, progress func(format string, args ...any)) error {
	p := r.plan
	var (
		client *resp.Client
		alive  map[int]bool
		shown  = -1
		last   error // why there was no answer
	)
	defer func() {
		if client != nil {
			_ = client.Close() // nothing is under way
		}
	}()
	ended := time.NewTicker(endedPeriod)
	defer ended.Stop()
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		looked := time.Now()
		if client == nil {
			client, last = r.dial()
		}
		if client != nil {
			var whole bool
			if alive, whole, last = p.look(client, began); whole {
				return nil
			}
			if last != nil {
				_ = client.Close() // it is dialled anew
				client = nil
			}
		}
		if n := len(alive); n > shown {
			shown = n
			progress("%d of %d ranks", n, len(p.Place.Nodes))
		}
		tick.Reset(max(lookPeriod, lookRest*time.Since(looked)))
		select {
		case <-tick.C:
		case <-ended.C:
			if nodes := p.gone(); len(nodes) > 0 {
				r.within(endedMargin)
				return errors.Join(fmt.Errorf("%w: the rank of %s has ended", ErrRing, list(nodes)), last)
			}
		case <-r.ended:
			return errors.Join(fmt.Errorf("%w: they have ended", ErrRing), last)
		case <-ctx.Done():
			return p.absent(alive, errors.Join(ctx.Err(), last))
		}
	}
}

// absent is the error for ranks of which this node's hears nothing.
func (p *Plan) absent(alive map[int]bool, cause error) error {
	var nodes []string
	for i, node := range p.Place.Nodes {
		if !alive[i] {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return fmt.Errorf("%w: they are alive, but do not all see each other: %w", ErrRing, cause)
	}
	return fmt.Errorf("%w: nothing is heard of %s: %w", ErrRing, list(nodes), cause)
}
