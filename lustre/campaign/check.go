package campaign

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"cascadekv/lustre/campaign/segfile"
)

// Severity is what a finding means.
type Severity string

// Severities.
const (
	Problem Severity = "problem" // costs blocks, or will, or breaks the format
	Note    Severity = "note"    // worth knowing, harms nobody
)

// Kinds of findings besides those of package segment.
const (
	KindUnreadable = "unreadable"  // the file system refused
	KindMode       = "mode"        // others than the owner may read or write
	KindConflict   = "conflict"    // one block id with two sizes or checksums
	KindUnknown    = "unknown"     // entries of a newer program
	KindTemp       = "tmp"         // a segment that was never published
	KindForeign    = "foreign"     // not ours
	KindAside      = "aside"       // moved aside by a repair
	KindTwins      = "incarnation" // one incarnation number under two ranks
	KindNames      = "names"       // names that point to no block
)

// Finding is one thing that Check has to say about one place.
type Finding struct {
	File     string   `json:"file"`   // relative to the campaign
	Offset   int64    `json:"offset"` // in bytes; -1: the file as such
	Length   int64    `json:"length,omitempty"`
	Severity Severity `json:"severity"`
	Kind     string   `json:"kind"`
	What     string   `json:"what"`
	Block    string   `json:"block,omitempty"` // the id of the block that is lost by it
	Remedy   string   `json:"remedy,omitempty"`
	Repaired bool     `json:"repaired"`
}

// CheckOptions say how closely Check looks.
type CheckOptions struct {
	Payloads bool // read every byte; without it payloads are taken to be right
	IDs      bool // with Payloads: compute block ids too
}

// Report is what Check found and Repair did.
type Report struct {
	Dir      string     `json:"dir"`
	Verify   string     `json:"verify"` // headers or payloads
	IDs      bool       `json:"ids"`
	NoID     int        `json:"ids_not_computed"` // with IDs: blocks with an unknown codec, of which only the checksum was looked at
	Clean    bool       `json:"clean"`            // no problem was found
	Problems int        `json:"problems"`
	Repaired int        `json:"repaired"`
	Left     int        `json:"left"` // problems that are still there
	Notes    int        `json:"notes"`
	Findings []*Finding `json:"findings"`
	Repairs  []Salvage  `json:"repairs,omitempty"`
	Totals   Totals     `json:"totals"`

	c      *contents
	how    CheckOptions
	modes  []item // with too wide permissions
	broken map[*Segment]bool
}

// Check looks at everything in the campaign and changes nothing. What cannot be
// read is a finding. Errors match ErrNoCampaign, or are ctx's.
func Check(ctx context.Context, o Options, how CheckOptions) (*Report, error) {
	how.Payloads = how.Payloads || how.IDs
	c, err := o.scan(ctx, segfile.InspectOptions{Payloads: how.Payloads, IDs: how.IDs}, head{})
	if err != nil {
		return nil, err
	}
	r := &Report{Dir: c.o.Dir, Verify: "headers", IDs: how.IDs, c: c, how: how, broken: map[*Segment]bool{}}
	if how.Payloads {
		r.Verify = "payloads"
	}
	r.listed()
	r.strangers()
	for _, s := range c.present() {
		r.segment(s)
	}
	r.conflicts()
	r.Totals = c.totals(c.present())
	r.count()
	return r, nil
}

// add adds a finding about a file as such.
func (r *Report) add(severity Severity, file, kind, what, remedy string) *Finding {
	f := &Finding{File: file, Offset: -1, Severity: severity, Kind: kind, What: what, Remedy: remedy}
	r.Findings = append(r.Findings, f)
	return f
}

// count puts findings in order and adds them up.
func (r *Report) count() {
	slices.SortStableFunc(r.Findings, func(a, b *Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Offset, b.Offset))
	})
	r.Problems, r.Repaired, r.Left, r.Notes = 0, 0, 0, 0
	for _, f := range r.Findings {
		switch {
		case f.Severity == Note:
			r.Notes++
		case f.Repaired:
			r.Problems, r.Repaired = r.Problems+1, r.Repaired+1
		default:
			r.Problems, r.Left = r.Problems+1, r.Left+1
		}
	}
	r.Clean = r.Problems == 0
}

// listed judges names and permissions.
func (r *Report) listed() {
	incarnations := map[uint64]string{}
	for _, d := range r.c.listing.dirs {
		r.mode(d, 0o700)
		if other, taken := incarnations[d.id.Incarnation]; taken {
			r.add(Note, d.path, KindTwins, "the incarnation has the number of "+other, "none, unless one of the two was copied or renamed by hand")
		}
		incarnations[d.id.Incarnation] = d.path
	}
	for _, it := range r.c.listing.files {
		switch it.kind {
		case isSegment, isToken, isTemp, isDamaged:
			r.mode(it, 0o600)
		}
		switch it.kind {
		case isUnlisted:
			r.add(Problem, it.path, KindUnreadable, it.err.Error(), "check the file system and the permissions, then check again")
		case isTemp:
			r.add(Note, it.path, KindTemp, "a segment that was never published; nothing in it was promised",
				"repair with delete removes it, unless it may have a writer")
		case isDamaged:
			r.add(Note, it.path, KindAside, "moved aside by a repair; readers pass it over", "repair with delete removes it")
		case isForeign:
			r.add(Note, it.path, KindForeign, "not a file of a campaign; readers pass it over", "move it away, if nobody needs it here")
		}
	}
}

// mode judges permissions: nobody but the owner may have any.
func (r *Report) mode(it item, want fs.FileMode) {
	if it.err != nil || it.info.Mode().Perm()&r.c.o.others(it) == 0 {
		return
	}
	r.modes = append(r.modes, it)
	r.add(Problem, it.path, KindMode, fmt.Sprintf("mode %04o lets others in; blocks are not encrypted", it.info.Mode().Perm()),
		fmt.Sprintf("repair sets %04o", want))
}

// remedies by kind, for what repair can do something about.
var remedies = map[string]string{
	segfile.BadHeader:   "repair moves what is intact to a new segment",
	segfile.BadFrame:    "repair moves what is intact to a new segment",
	segfile.BadEntry:    "repair leaves out the entry and moves the rest to a new segment",
	segfile.BadPadding:  "repair moves everything to a new segment",
	segfile.BadPayload:  "repair leaves out the block and moves the rest to a new segment; the block is a miss",
	segfile.BadID:       "repair leaves out the block and moves the rest to a new segment; the block is a miss",
	segfile.BadFooter:   "repair moves what is intact to a new segment",
	segfile.BadMatch:    "repair moves what readers see to a new segment",
	segfile.BadTail:     "repair moves what counts to a new segment",
	segfile.BadVersion:  "none: use the program that wrote it",
	segfile.BadIdentity: "repair moves the file aside; rename it by hand if you know where it belongs",
}

// segment judges one file.
func (r *Report) segment(s *Segment) {
	if s.err != nil {
		r.add(Problem, s.Path, KindUnreadable, s.err.Error(),
			"check the file system's servers, then check again; nothing is repaired while it cannot be read")
		return
	}
	if r.how.IDs {
		r.NoID += s.alien
	}
	for _, d := range s.damage {
		f := r.add(Problem, s.Path, d.Kind, d.What, remedies[d.Kind])
		f.Offset, f.Length = d.Off, d.Len
		if !d.ID.IsZero() {
			f.Block = d.ID.String()
		}
		if s.Writer {
			f.Remedy = "it may have a writer: repair when no rank runs, or with force"
			if d.Kind == segfile.BadTail {
				f.Severity, f.What = Note, d.What+"; or it is being written now"
			}
		}
		r.broken[s] = true
	}
	if s.unknown > 0 {
		r.add(Note, s.Path, KindUnknown, fmt.Sprintf("%d entries of kinds that this program does not know", s.unknown),
			"use a newer program to repair or export this segment")
	}
	if s.alien > 0 {
		r.add(Note, s.Path, KindUnknown, fmt.Sprintf("%d blocks are stored with codecs that this program does not know; it passes them over", s.alien),
			"none is needed: a newer program reads them")
	}
	if s.LostNames > 0 {
		r.add(Note, s.Path, KindNames, fmt.Sprintf("%d names point to blocks that are nowhere: they were evicted or lost, and are misses", s.LostNames), "")
	}
}

// conflicts reports blocks with two sizes or checksums. Their ids show which
// copy is right, so repair computes them.
func (r *Report) conflicts() {
	for _, x := range r.c.survey.conflicts {
		for i, file := range x.files {
			s, other := r.c.segments[file], r.c.segments[x.files[1-i]]
			s.ids = true
			if r.how.IDs && slices.ContainsFunc(s.damage, func(d segfile.Damage) bool { return d.Kind == segfile.BadID && d.ID == x.id }) {
				continue
			}
			r.broken[s] = true
			f := r.add(Problem, s.Path, KindConflict, fmt.Sprintf("block %v has another size or checksum in %s", x.id, other.Path),
				"repair computes the id and keeps the right one")
			f.Block = x.id.String()
		}
	}
}

// Summary is a sentence on what was looked at and what came of it.
func (r *Report) Summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems", r.Problems)
	if r.Problems == 1 {
		b.Reset()
		b.WriteString("1 problem")
	}
	if r.Repaired > 0 || len(r.Repairs) > 0 {
		fmt.Fprintf(&b, ", %d repaired, %d left", r.Repaired, r.Left)
	}
	return b.String()
}
