package segfile

import (
	"fmt"
	"strings"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
)

// State is how a segment ends.
type State string

// States of a segment.
const (
	StateSealed State = "sealed" // a valid footer
	StateOpen   State = "open"   // intact frames and nothing behind them
	StateTorn   State = "torn"   // something behind the last frame that counts
	StateClosed State = "closed" // readers refuse the file: its header page is bad or another's
)

// Entry is one entry of a segment, its payload's offset from the start of the file.
type Entry struct {
	format.Entry
	At     int64 // of the entry, from the start of the file
	Hidden bool  // intact, but behind damage that stops readers
	Bad    bool  // the payload was read and does not match the entry
	torn   bool  // readers see that its checksum is wrong
}

// Same reports whether two entries are the same and lie at one place.
func (e Entry) Same(as Entry) bool {
	same := e.Entry.Same(as.Entry)
	e.Entry = as.Entry
	return same && e == as
}

// Known reports whether this program knows the codec of a BLOCK. Readers pass
// over those that it does not know.
func (e *Entry) Known() bool { return e.Kind != format.KindBlock || e.Codec.Known() }

// What can be wrong with a segment.
const (
	BadHeader   = "header"   // the first page
	BadVersion  = "version"  // of a format that this program does not know
	BadIdentity = "identity" // the header belongs under another name
	BadFrame    = "frame"    // a frame's header or table
	BadEntry    = "entry"    // an entry that no writer makes
	BadPadding  = "padding"  // bytes that must be zero
	BadPayload  = "payload"  // a block's bytes
	BadID       = "id"       // a block's bytes are not those its id is made from
	BadFooter   = "footer"   // footer or trailer
	BadMatch    = "mismatch" // footer and frames differ
	BadTail     = "tail"     // what a crash leaves behind the last frame, or looks like it
)

// Damage is one place of a segment that is not as it should be.
type Damage struct {
	Kind string
	Off  int64 // where it begins, in bytes from the start of the file
	Len  int64 // how far it reaches; 0: unknown
	What string
	ID   block.ID // of the block that is lost by it; zero: none, or not known
}

// View is what Inspect found in one file.
type View struct {
	ID      format.FileID
	Size    int64
	State   State
	Footer  bool           // there is a valid footer, so no writer adds to the file
	Header  *format.Header // nil when the first page cannot be trusted
	Frames  int            // intact ones
	Unknown int            // entries of kinds that this program does not know
	Entries []Entry        // all that count and all that can be saved, in file order
	Damage  []Damage
}

// NewHeader is for a segment that takes what could be saved.
func (v *View) NewHeader() (h format.Header) {
	if v.Header != nil {
		h.Created, h.Fingerprint = v.Header.Created, v.Header.Fingerprint
	}
	return h
}

// InspectOptions say how closely Inspect looks.
type InspectOptions struct {
	Payloads bool // read every byte: payloads and padding too
	IDs      bool // compute the ids of blocks too
	// Buf is memory to read through, at least 64 KiB; larger reads are faster.
	Buf []byte
	// Progress, when not nil, is called with bytes read.
	Progress func(n int64)
}

// Inspect reads the segment id from f and returns what readers see in it, what
// is damaged, and what could be saved. Without Payloads it reads what Recover
// reads, and the headers of all frames. An error is one of the file system; it
// must not be taken for damage, because what it hides may be all right.
//
// What counts is docs/format.md §1.7. Frames behind a bad one are saved, as
// Hidden entries, when the file proves that the bad one was durable once: by a
// later frame whose synced is larger than its number, or by what is left of a
// footer. Otherwise they are what a crash leaves, and are ignored for good.
func Inspect(f vfs.File, id format.FileID, o InspectOptions) (*View, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	in := &inspector{
		o: o, id: id, end: size,
		win:      window{f: f, size: size, buf: o.Buf, progress: o.Progress},
		verifier: verifier{ids: o.IDs},
		v:        &View{ID: id, Size: size, State: StateClosed},
	}
	if refused, err := in.header(); refused || err != nil {
		return in.v, err
	}
	if err := in.footer(); err != nil {
		return nil, err
	}
	if err := in.walk(); err != nil {
		return nil, err
	}
	if err := in.verify(); err != nil {
		return nil, err
	}
	in.conclude()
	return in.v, nil
}

// inspector is the work of one Inspect.
type inspector struct {
	o   InspectOptions
	id  format.FileID
	win window
	verifier
	v   *View
	end int64 // of what frames may fill: the footer's start, or the file's end

	sealed  bool    // the footer is valid
	remains bool    // or something is left of one
	entries []Entry // of the footer
	count   uint64  // of frames, by the footer
	matched int     // entries of the footer that frames have too
	differ  bool    // one that they did not
	frames  []inspected
	gaps    []gap
	pads    []extent
	tail    int64 // where the intact frames end
	tailErr error // why there is none at tail, when the file goes on
}

// inspected is an intact frame.
type inspected struct {
	off, total     int64
	number, synced uint64
	entries        []Entry
	unknown        int  // entries that may own bytes which look like padding
	checked        bool // payloads have been read
}

// gap is a run of frames that are not intact, in front of one that is.
type gap struct {
	off, len int64
	from, to uint64 // numbers
	before   int    // index of the intact frame behind it
	why      error
}

type extent struct{ off, len int64 }

func (in *inspector) damage(kind string, off, n int64, text string, args ...any) {
	what := strings.ReplaceAll(fmt.Sprintf(text, args...), format.ErrBadFormat.Error()+": ", "")
	in.v.Damage = append(in.v.Damage, Damage{Kind: kind, Off: off, Len: n, What: what})
}

// header reads the first page. refused means that the rest must not be
// interpreted. A page that fails its checksum is no reason: file name,
// directory and frames still say what the file is.
func (in *inspector) header() (refused bool, err error) {
	if in.v.Size < format.PageSize {
		in.damage(BadTail, 0, in.v.Size, "the file ends after %d bytes, within its first page: nothing in it was promised", in.v.Size)
		in.v.State = StateTorn
		return true, nil
	}
	p, err := in.win.at(0, format.PageSize)
	if err != nil {
		return false, err
	}
	id, h, err := format.DecodeHeader(p)
	switch {
	case err != nil && string(p[:8]) == format.HeaderMagic && format.LE.Uint32(p[4092:]) == block.CRC(p[:4092]):
		in.damage(BadVersion, 0, format.PageSize, "%v: leave it to the program that wrote it", err)
		return true, nil
	case err != nil:
		in.damage(BadHeader, 0, format.PageSize, "%v", err)
	case id != in.id:
		in.damage(BadIdentity, 0, format.PageSize, "the header is of rank %d, incarnation %016x, file %d", id.Rank, id.Incarnation, id.Number)
		return true, nil
	default:
		in.v.Header = &h
	}
	return false, nil
}

// footer reads the footer that a valid trailer points to.
func (in *inspector) footer() error {
	t, err := in.win.at(in.v.Size-format.TrailerSize, format.TrailerSize)
	if err != nil {
		return err
	}
	off, size, ok := format.DecodeTrailer(t, in.v.Size)
	if !ok {
		return nil
	}
	p, err := in.win.large(off, size)
	if err != nil {
		return err
	}
	in.end, in.remains = off, true
	foot, err := format.DecodeFooter(p, in.id)
	if err == nil {
		in.count = foot.Frames
		in.entries, in.v.Unknown, err = exportTable(foot.Table, 0, off, off+foot.TableAt, foot.Entries)
	}
	if err != nil {
		in.damage(BadFooter, off, size, "%v", err)
		return nil
	}
	in.sealed, in.v.Footer = true, true
	return nil
}

// exportTable decodes want entries of a table that has been checked and lies at
// at. base is what offsets in it count from less than the file's start: 0 in a
// footer.
func exportTable(p []byte, base, limit, at int64, want int) (out []Entry, unknown int, err error) {
	out = make([]Entry, 0, min(want, len(p)/8))
	err = format.EachEntry(p, at-base, limit-base, want, func(e *format.Entry, off int64, known bool) {
		if !known && e.Kind != format.KindBlock {
			unknown++
			return
		}
		if e.Kind == format.KindBlock {
			e.Off += base
		}
		out = append(out, Entry{Entry: *e, At: base + off})
	})
	if err != nil {
		return nil, 0, err
	}
	return out, unknown, nil
}
