package campaign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
)

// Segment is one segment file of a campaign.
type Segment struct {
	Path        string        `json:"path"` // relative to the campaign
	Rank        uint32        `json:"rank"`
	Incarnation string        `json:"incarnation"` // hex, as in the path
	Number      uint64        `json:"number"`
	Bytes       int64         `json:"bytes"`
	State       segfile.State `json:"state"` // empty when the file cannot be read
	Writer      bool          `json:"may_have_writer"`
	Created     time.Time     `json:"created,omitzero"`
	Layout      string        `json:"layout,omitempty"` // as in the header
	Frames      int           `json:"frames"`
	Blocks      int           `json:"blocks"`
	Payload     int64         `json:"payload_bytes"` // of those blocks, as stored
	BlockBytes  int64         `json:"block_bytes"`   // of those blocks, decoded
	Names       int           `json:"name_records"`  // withdrawn names too
	LiveBlocks  int           `json:"live_blocks"`
	LiveBytes   int64         `json:"live_bytes"` // as stored
	LiveNames   int           `json:"live_names"` // whose newest record lies here
	LostNames   int           `json:"names_without_block"`
	Hidden      int           `json:"hidden_entries"` // intact, but behind damage
	Damage      []string      `json:"damage,omitempty"`
	Error       string        `json:"error,omitempty"` // of the file system

	state
}

// state is what the functions of the package keep of a segment.
type state struct {
	id      format.FileID
	unknown int
	alien   int // blocks with a codec that this program does not know
	damage  []segfile.Damage
	info    fs.FileInfo
	err     error
	gone    bool
	footer  bool
	ids     bool // a conflict asks for the ids of its blocks
}

// Totals adds up segments. Blocks that lie in several of them count each time
// in Blocks; Distinct and DuplicateBytes are those of the whole campaign.
type Totals struct {
	Segments       int   `json:"segments"`
	Incarnations   int   `json:"incarnations"`
	Ranks          int   `json:"ranks"`
	Bytes          int64 `json:"bytes"`
	Blocks         int   `json:"blocks"`
	Distinct       int   `json:"distinct_blocks"`
	DuplicateBytes int64 `json:"duplicate_bytes"` // of second and further copies
	Payload        int64 `json:"payload_bytes"`   // as stored
	BlockBytes     int64 `json:"block_bytes"`     // decoded
	LiveBlocks     int   `json:"live_blocks"`
	LiveBytes      int64 `json:"live_bytes"`
	LiveNames      int   `json:"live_names"`
	LostNames      int   `json:"names_without_block"`
}

// Namespace is what is live of one namespace, in all segments.
type Namespace struct {
	Name            string `json:"name"`
	Names           int    `json:"names"`
	BytesReferenced int64  `json:"bytes_referenced"` // of their blocks, decoded; one with several names counts as often

	Layout *block.Layout `json:"layout,omitempty"` // nil: not known
}

// Listing is what List found.
type Listing struct {
	Dir        string      `json:"dir"`
	Segments   []*Segment  `json:"segments"`   // in the order of readers
	Namespaces []Namespace `json:"namespaces"` // by name; of the whole campaign, whatever rank was asked for
	Runs       []Run       `json:"runs"`       // who owns which directory
	Refused    Strangers   `json:"refused"`    // what belongs to others and is not read
	Totals     Totals      `json:"totals"`
}

// List reads the metadata of all segments, or of one rank's when rank is not
// negative; what is live is judged by all of them. Errors match ErrNoCampaign,
// or are ctx's.
func List(ctx context.Context, o Options, rank int64) (*Listing, error) {
	c, err := o.scan(ctx, segfile.InspectOptions{}, head{})
	if err != nil {
		return nil, err
	}
	l := &Listing{Dir: c.o.Dir, Segments: c.present(), Namespaces: c.namespaces, Runs: c.runs, Refused: c.listing.strangers()}
	if rank >= 0 {
		l.Segments = slices.DeleteFunc(l.Segments, func(s *Segment) bool { return int64(s.Rank) != rank })
		l.Runs = slices.DeleteFunc(l.Runs, func(r Run) bool { return int64(r.Rank) != rank })
	}
	l.Totals = c.totals(l.Segments)
	return l, nil
}

// contents is a campaign that has been read.
type contents struct {
	o          Options
	listing    *listing
	segments   []*Segment
	namespaces []Namespace
	runs       []Run
	survey     *survey
}

// scan lists the campaign and inspects every segment. It marks what an export with
// the head asks for.
func (o Options) scan(ctx context.Context, how segfile.InspectOptions, h head) (*contents, error) {
	s := &survey{
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		names: map[nameHash]newest{}, where: map[block.ID]*copies{}, wanted: map[block.ID]struct{}{}, spaces: map[string]int32{}, layouts: map[string]format.Record{},
	}
	if !h.all() {
		s.want, s.live = h.matches, h.Live
	}
	o.setDefaults()
	l, err := o.list()
	if err != nil {
		return nil, err
	}
	c := &contents{o: o, listing: l, survey: s, runs: o.runs(l)}
	owned := map[string]bool{} // directories whose owner lives, as far as is known
	for _, r := range c.runs {
		owned[r.Path] = r.Life == lease.LifeAlive
	}
	open := o.Writers()
	m := &meter{report: o.Progress}
	for _, it := range l.files {
		if it.kind != isSegment {
			continue
		}
		s := &Segment{
			Path: it.path, Rank: it.id.Rank, Incarnation: fmt.Sprintf("%016x", it.id.Incarnation), Number: it.id.Number,
			state: state{id: it.id, info: it.info, err: it.err},
		}
		if it.err == nil {
			s.Bytes, s.Writer = it.info.Size(), o.mayHaveWriter(it, open, owned)
			m.total += s.Bytes
		}
		c.segments = append(c.segments, s)
	}
	err = o.each(ctx, len(c.segments), func(i int, buf []byte) error {
		how := how
		how.Buf = buf
		if how.Payloads {
			how.Progress = m.add
		}
		c.inspect(i, how)
		if !how.Payloads {
			m.add(c.segments[i].Bytes)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	c.judge()
	return c, nil
}

// present returns the segments that did not vanish while they were looked at.
func (c *contents) present() []*Segment {
	return slices.DeleteFunc(slices.Clone(c.segments), func(s *Segment) bool { return s.gone })
}

// inspect reads segment i into the survey.
func (c *contents) inspect(i int, how segfile.InspectOptions) {
	s := c.segments[i]
	if s.err == nil {
		var f vfs.File
		var v *segfile.View
		if f, v, s.err = c.o.open(s, how); s.err == nil {
			f.Close() // only read: its error means nothing
			s.take(v)
			c.survey.add(i, v.Entries)
		}
	}
	if s.err != nil {
		s.gone, s.Error = errors.Is(s.err, os.ErrNotExist), s.err.Error()
	}
}

// open opens a segment and inspects it.
func (o *Options) open(s *Segment, how segfile.InspectOptions) (vfs.File, *segfile.View, error) {
	f, err := o.FS.Open(filepath.Join(o.Dir, s.Path))
	if err != nil {
		return nil, nil, err
	}
	v, err := segfile.Inspect(f, s.id, how)
	if err != nil {
		f.Close() // only read: its error means nothing
		return nil, nil, err
	}
	return f, v, nil
}

func (s *Segment) take(v *segfile.View) {
	s.Bytes, s.State, s.Frames, s.damage, s.unknown = v.Size, v.State, v.Frames, v.Damage, v.Unknown
	s.footer, s.Writer = v.Footer, s.Writer && !v.Footer
	if v.Header != nil {
		s.Created, s.Layout = v.Header.Created, v.Header.Layout
	}
	for _, d := range v.Damage {
		s.Damage = append(s.Damage, fmt.Sprintf("%s at %d: %s", d.Kind, d.Off, d.What))
	}
	for i := range v.Entries {
		e := &v.Entries[i]
		switch {
		case e.Hidden:
			s.Hidden++
		case e.Kind == format.KindBlock:
			s.Blocks++
			s.Payload += e.Stored
			s.BlockBytes += e.Info.Size
			if !e.Known() {
				s.alien++
			}
		case e.Kind == format.KindLayout:
		default:
			s.Names++
		}
	}
}

// judge finds what is live, once every segment has been read.
func (c *contents) judge() {
	spaces := make([]Namespace, len(c.survey.spaces))
	for ns, i := range c.survey.spaces {
		spaces[i].Name, spaces[i].Layout = ns, c.survey.layouts[ns].Layout
	}
	c.survey.settle(c.o.Now(), func(n newest, of *copies) {
		if of == nil {
			c.segments[n.file].LostNames++
			return
		}
		c.segments[n.file].LiveNames++
		spaces[n.space].Names++
		spaces[n.space].BytesReferenced += of.size
	})
	c.namespaces = slices.DeleteFunc(spaces, func(n Namespace) bool { return n.Names == 0 })
	slices.SortFunc(c.namespaces, func(a, b Namespace) int { return cmp.Compare(a.Name, b.Name) })
	for _, b := range c.survey.where {
		if b.live {
			c.segments[b.file].LiveBlocks++
			c.segments[b.file].LiveBytes += b.stored
		}
	}
}

func (c *contents) totals(of []*Segment) Totals {
	t := Totals{Segments: len(of), Distinct: len(c.survey.where)}
	ranks, dirs := map[uint32]bool{}, map[string]bool{}
	for _, s := range of {
		ranks[s.Rank], dirs[filepath.Dir(s.Path)] = true, true
		t.Bytes += s.Bytes
		t.Blocks += s.Blocks
		t.Payload += s.Payload
		t.BlockBytes += s.BlockBytes
		t.LiveBlocks += s.LiveBlocks
		t.LiveBytes += s.LiveBytes
		t.LiveNames += s.LiveNames
		t.LostNames += s.LostNames
	}
	t.Ranks, t.Incarnations = len(ranks), len(dirs)
	for _, b := range c.survey.where {
		t.DuplicateBytes += int64(b.more) * b.stored
	}
	return t
}
