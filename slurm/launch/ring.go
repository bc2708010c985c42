package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cascadekv/dht"
	"cascadekv/internal/resp"
)

// ErrRing means that the ranks did not become one cache in time, or ended before.
var ErrRing = errors.New("launch: the ranks are not all there")

const (
	lookPeriod  = 50 * time.Millisecond // between looks at the ring
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
	var stats struct {
		Uptime float64 `json:"uptime_seconds"`
	}
	if err := ask(client, "CASCADE.STATS", &stats); err != nil {
		return nil, false, err
	}
	if uptime := time.Duration(stats.Uptime * float64(time.Second)); uptime > time.Since(began) {
		return nil, false, fmt.Errorf("another rank has served %s for %v", p.Config.Socket, uptime)
	}
	alive = map[int]bool{}
	if p.Place.Job == nil {
		alive[p.Place.Rank] = true
		return alive, true, nil
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

// dial connects to this node's rank.
func (p *Plan) dial() (*resp.Client, error) {
	password, err := p.Config.Password()
	if err != nil {
		return nil, err
	}
	client, err := resp.Dial("unix", p.Config.Socket, lookTimeout, p.Config.ServerUIDs...)
	if err != nil {
		return nil, err
	}
	if password != "" {
		if _, err := client.Do("AUTH", password); err != nil {
			return nil, errors.Join(err, client.Close())
		}
	}
	return client, nil
}

// await waits until the ring is whole. The ranks were started after began, and ended is
// closed when they have ended; progress gets a line for each change.
func (p *Plan) await(ctx context.Context, began time.Time, ended <-chan struct{}, progress func(format string, args ...any)) error {
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
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	for {
		if client == nil {
			client, last = p.dial()
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
		select {
		case <-tick.C:
		case <-ended:
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
