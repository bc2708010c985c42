package lustretest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"cascadekv/internal/block"
	"cascadekv/tiers"
	"cascadekv/tiers/lustre"
)

// verdict is what the program verify found out about a campaign.
type verdict struct {
	Storms       int      `json:"storms"`
	Acknowledged int      `json:"acknowledged"` // blocks that are durable and not evicted
	Found        int      `json:"found"`        // of those, with the bytes that were put
	ByPlace      int      `json:"by_place"`     // of those, read as another rank would
	Others       int      `json:"others"`       // blocks found besides: evicted, or never acknowledged
	Wrong        []string `json:"wrong"`        // blocks whose bytes are not those of their id
	Lost         []string `json:"lost"`         // acknowledged blocks, and what happened to them
	LostNames    []string `json:"lost_names"`   // acknowledged names that point elsewhere
	Skipped      []string `json:"skipped"`      // files that recovery left out
}

// add sums verdicts of several campaigns.
func (v *verdict) add(w verdict) {
	v.Storms += w.Storms
	v.Acknowledged += w.Acknowledged
	v.Found += w.Found
	v.ByPlace += w.ByPlace
	v.Others += w.Others
	v.Wrong = append(v.Wrong, w.Wrong...)
	v.Lost = append(v.Lost, w.Lost...)
	v.LostNames = append(v.LostNames, w.LostNames...)
	v.Skipped = append(v.Skipped, w.Skipped...)
}

// sound says why a verdict is a failure; "" when it is none.
func (v *verdict) sound() string {
	if len(v.Wrong)+len(v.Lost)+len(v.LostNames) == 0 && v.Found == v.Acknowledged {
		return ""
	}
	return fmt.Sprintf("%d blocks acknowledged, %d found; wrong %q; lost %q; names lost %q; skipped %q",
		v.Acknowledged, v.Found, few(v.Wrong), few(v.Lost), few(v.LostNames), few(v.Skipped))
}

func few(s []string) []string { return s[:min(len(s), 8)] }

func (v *verdict) String() string {
	return fmt.Sprintf("%d storms: %d blocks acknowledged, %d found (%d by place), %d wrong, %d lost, %d names lost; %d others, %d files skipped",
		v.Storms, v.Acknowledged, v.Found, v.ByPlace, len(v.Wrong), len(v.Lost), len(v.LostNames), v.Others, len(v.Skipped))
}

// verifier opens a campaign as a new rank does.
type verifier struct {
	tier, other *lustre.Tier
	blocks      map[block.ID]block.Info
	names       map[string]block.Name
	ids         map[string]block.ID // by name
	seen        map[block.ID]bool   // among the acknowledged
	verdict     verdict
}

// runVerify prints a verdict on a directory and its journals.
func runVerify(args []string) error {
	f := flag.NewFlagSet("verify", flag.ContinueOnError)
	dir := f.String("dir", "", "directory of the tier")
	journals := f.String("journals", "", "folder of journals, on the host")
	if err := f.Parse(args); err != nil {
		return err
	}
	v := &verifier{blocks: map[block.ID]block.Info{}, names: map[string]block.Name{}, ids: map[string]block.ID{}, seen: map[block.ID]bool{}}
	if err := v.open(*dir); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(*journals, "journal-*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		number, err := strconv.ParseUint(strings.TrimPrefix(filepath.Base(file), "journal-"), 10, 64)
		if err != nil {
			return err
		}
		known, err := readJournal(file)
		if err != nil {
			return err
		}
		v.storm(number, known)
	}
	v.others()
	if err := errors.Join(v.tier.Close(), v.other.Close()); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(v.verdict)
}

func (v *verifier) open(dir string) (err error) {
	const rank = 50 // no storm's
	if v.tier, err = openTier(lustre.Options{Dir: dir, Rank: rank}); err != nil {
		return err
	}
	if v.other, err = openTier(lustre.Options{Dir: dir, Rank: rank + 1}); err != nil {
		return err
	}
	err = v.tier.Recover(func(e tiers.Entry) error {
		if !e.Info.ID.IsZero() {
			v.blocks[e.Info.ID] = e.Info
		}
		for _, n := range e.Names {
			v.names[n.Key], v.ids[n.Key] = n, e.Info.ID
		}
		return nil
	})
	for _, err := range v.tier.Skipped() {
		v.verdict.Skipped = append(v.verdict.Skipped, err.Error())
	}
	return err
}

// storm looks for all that one storm knows to be durable.
func (v *verifier) storm(number uint64, known map[uint64]record) {
	v.verdict.Storms++
	var newest [lanes]uint64
	for seq, r := range known {
		if !r.put || r.evicted {
			continue
		}
		newest[seq%lanes] = max(newest[seq%lanes], seq)
		for i, it := range (batch{number, seq}).items() {
			v.block(batch{number, seq}, i, it)
		}
	}
	for _, seq := range newest {
		b := batch{number, seq}
		if n := v.names[b.moving()]; n.Seq < seq {
			v.verdict.LostNames = append(v.verdict.LostNames, fmt.Sprintf("%s is at %d, acknowledged at %d", b.moving(), n.Seq, seq))
		}
	}
}

func (v *verifier) block(b batch, i int, it tiers.Item) {
	v.verdict.Acknowledged++
	v.seen[it.Info.ID] = true
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := readPinned(ctx, v.tier, it.Info)
	switch {
	case err != nil:
		v.verdict.Lost = append(v.verdict.Lost, fmt.Sprintf("%s: %v", b.key(i), err))
		return
	case !bytes.Equal(got, it.Data):
		v.verdict.Wrong = append(v.verdict.Wrong, b.key(i))
		return
	}
	v.verdict.Found++
	if v.ids[b.key(i)] != it.Info.ID {
		v.verdict.LostNames = append(v.verdict.LostNames, b.key(i))
	}
	at, err := v.tier.Segment(it.Info.ID)
	if err == nil {
		clear(got)
		err = v.other.ReadSegment(ctx, at, it.Info, got)
	}
	if err != nil || !bytes.Equal(got, it.Data) {
		v.verdict.Wrong = append(v.verdict.Wrong, fmt.Sprintf("%s by its place: %v", b.key(i), err))
		return
	}
	v.verdict.ByPlace++
}

// others reads the blocks that nobody was promised. They may be absent, or
// found out to be torn, but not wrong.
func (v *verifier) others() {
	for id, info := range v.blocks {
		if v.seen[id] {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		got, err := readPinned(ctx, v.tier, info)
		cancel()
		v.verdict.Others++
		if err == nil && block.Sum(block.Bits128, got) != id {
			v.verdict.Wrong = append(v.verdict.Wrong, fmt.Sprintf("%v, which nobody was promised", id))
		}
	}
}
