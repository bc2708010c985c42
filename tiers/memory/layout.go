package memory

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
	"unsafe"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
)

// The layout of an arena file, docs/format.md §2. All numbers little-endian.
const (
	superMagic   = "CASCSHM1"
	superVersion = 1

	offFileSize = 16
	offTags     = 24
	offData     = 32
	offSuperCRC = 40 // over [0, 40)
	offReady    = 48 // this and what follows change while the file lives: outside the checksum
	offMoving   = 56
	offJob      = 64

	blockMagic = 0x314b4243 // "CBK1"
	nameMagic  = 0x314d4e43 // "CNM1"

	layoutMagic = 0x31594c43 // "CLY1"

	blockRecordSize  = 72
	nameRecordSize   = 48 // then namespace, key, parent
	layoutRecordSize = 56 // then namespace, dtype

	flagPrefix   = 1
	flagBound    = 2
	flagInferred = 4
)

var le = binary.LittleEndian

// ErrOtherLayout means that a file is no arena, or one of another version. It is
// left alone.
var ErrOtherLayout = errors.New("file is no arena of this version")

// geometry is where things are in a file of a given size.
type geometry struct{ fileSize, tags, data, capacity int64 }

func geometryOf(fileSize int64) geometry {
	pages := fileSize / arena.Page
	g := geometry{fileSize: fileSize, tags: arena.Page}
	g.data = (g.tags + pages + arena.Page - 1) / arena.Page * arena.Page
	g.capacity = max(0, fileSize-g.data) / arena.Page * arena.Page
	return g
}

// super is the superblock up to what changes while the file lives.
func (g geometry) super() (page [offReady]byte) {
	copy(page[:], superMagic)
	le.PutUint32(page[8:], superVersion)
	le.PutUint32(page[12:], arena.Page)
	le.PutUint64(page[offFileSize:], uint64(g.fileSize))
	le.PutUint64(page[offTags:], uint64(g.tags))
	le.PutUint64(page[offData:], uint64(g.data))
	le.PutUint32(page[offSuperCRC:], block.CRC(page[:offSuperCRC]))
	return page
}

// writeSuper makes p, of zeros, a superblock. The magic comes last: a file
// without it is new, whatever else is in it.
func (g geometry) writeSuper(p []byte) {
	page := g.super()
	copy(p[len(superMagic):], page[len(superMagic):])
	(*atomic.Uint64)(unsafe.Pointer(&p[0])).Store(le.Uint64(page[:]))
}

// checkSuper reports whether p heads a file that this code laid out.
func (g geometry) checkSuper(p []byte) error {
	if [offReady]byte(p[:offReady]) != g.super() {
		return ErrOtherLayout
	}
	return nil
}

// isNew reports whether p, the start of a file, belongs to an arena whose
// superblock was never finished.
func isNew(p []byte) bool {
	head := p[:min(len(superMagic), len(p))]
	return bytes.Count(head, []byte{0}) == len(head)
}

// isOther reports whether p, the start of a file that is no arena of this version,
// belongs to an arena of another one.
func isOther(p []byte) bool {
	if len(p) < offReady || string(p[:len(superMagic)-1]) != superMagic[:len(superMagic)-1] {
		return false
	}
	whole := le.Uint32(p[offSuperCRC:]) == block.CRC(p[:offSuperCRC])
	return whole && (p[len(superMagic)-1] != superMagic[len(superMagic)-1] || le.Uint32(p[8:]) != superVersion)
}

// isDamaged reports whether p, the start of a file of size bytes that is no arena
// of any version, was one: it has the magic, most of a superblock, or just the size
// that is asked for.
func isDamaged(p []byte, size, wanted int64) bool {
	if size == wanted {
		return true
	}
	if len(p) < offReady {
		return false
	}
	alike, want := 0, geometryOf(size).super()
	for i := range want {
		if p[i] == want[i] {
			alike++
		}
	}
	return string(p[:len(superMagic)]) == superMagic || alike > len(want)*3/4
}

// admit decides what becomes of a file that is there and was to have size bytes.
// One with records keeps its size, see resized. One that is new, has no record or
// is damaged gets size; what the damage costs goes to seen.
func admit(path string, size int64, seen *Opened) arena.Admit {
	return func(old io.ReaderAt, oldSize int64) (int64, error) {
		page := make([]byte, min(oldSize, arena.Page))
		if _, err := old.ReadAt(page, 0); err != nil {
			return 0, fmt.Errorf("memory: read %s: %w", path, err)
		}
		if isNew(page) {
			return size, nil
		}
		g := geometryOf(oldSize)
		if len(page) < arena.Page || g.checkSuper(page) != nil {
			if isOther(page) || !isDamaged(page, oldSize, size) {
				return 0, fmt.Errorf("memory: %s, %d bytes: %w; remove it or choose another file (--shm-path)", path, oldSize, ErrOtherLayout)
			}
			seen.GivenUp = oldSize
			return size, nil
		}
		tags := make([]byte, g.capacity/arena.Page)
		if _, err := old.ReadAt(tags, g.tags); err != nil {
			return 0, fmt.Errorf("memory: read %s: %w", path, err)
		}
		if loadReady(page) > 0 && arena.HasRecords(tags) {
			return oldSize, nil
		}
		return size, nil
	}
}

// blockRecord is the note of one block.
type blockRecord struct {
	uid    uint64 // what name records call the block; survives Rename
	info   block.Info
	offset int64 // of the payload in the data area

	// version distinguishes a record from those that the block had before, one of which
	// may have been in the same cell.
	version uint32
}

// write fills p and makes the record valid as its last step.
func (r blockRecord) write(p []byte) {
	clear(p[4:blockRecordSize])
	le.PutUint64(p[8:], r.uid)
	copy(p[16:48], r.info.ID[:])
	le.PutUint64(p[48:], uint64(r.offset))
	le.PutUint64(p[56:], uint64(r.info.Size))
	le.PutUint32(p[64:], r.info.CRC)
	le.PutUint32(p[68:], r.version)
	le.PutUint32(p[4:], block.CRC(p[8:blockRecordSize]))
	publish(p, blockMagic)
}

func readBlockRecord(p []byte) (blockRecord, bool) {
	if len(p) < blockRecordSize || le.Uint32(p) != blockMagic || le.Uint32(p[4:]) != block.CRC(p[8:blockRecordSize]) {
		return blockRecord{}, false
	}
	r := blockRecord{
		uid:    le.Uint64(p[8:]),
		offset: int64(le.Uint64(p[48:])),
		info: block.Info{
			ID:   block.ID(p[16:48]),
			Size: int64(le.Uint64(p[56:])),
			CRC:  le.Uint32(p[64:]),
		},
		version: le.Uint32(p[68:]),
	}
	return r, r.info.Size >= 0 && r.info.Size <= block.MaxSize && r.offset >= 0
}

func nameRecordLen(n block.Name) int64 {
	return int64(nameRecordSize + len(n.Namespace) + len(n.Key) + len(n.Parent))
}

// writeName fills p, of nameRecordLen bytes, and makes it valid as its last step.
func writeName(p []byte, uid uint64, n block.Name) {
	clear(p[4:nameRecordSize])
	le.PutUint64(p[8:], uid)
	le.PutUint64(p[16:], n.Seq)
	if !n.Expires.IsZero() {
		le.PutUint64(p[24:], uint64(n.Expires.UnixNano()))
	}
	le.PutUint32(p[32:], n.Depth)
	le.PutUint16(p[36:], nameFlags(n))
	le.PutUint16(p[38:], uint16(len(n.Namespace)))
	le.PutUint16(p[40:], uint16(len(n.Key)))
	le.PutUint16(p[42:], uint16(len(n.Parent)))
	rest := p[nameRecordSize:]
	rest = rest[copy(rest, n.Namespace):]
	rest = rest[copy(rest, n.Key):]
	copy(rest, n.Parent)
	le.PutUint32(p[4:], block.CRC(p[8:nameRecordLen(n)]))
	publish(p, nameMagic)
}

func nameFlags(n block.Name) (f uint16) {
	if n.Prefix {
		f |= flagPrefix
	}
	if n.Bound {
		f |= flagBound
	}
	if n.Inferred {
		f |= flagInferred
	}
	return f
}

// readName reads the record at the start of the cell p.
func readName(p []byte) (uid uint64, n block.Name, ok bool) {
	if len(p) < nameRecordSize || le.Uint32(p) != nameMagic {
		return 0, n, false
	}
	ns, key, parent := int(le.Uint16(p[38:])), int(le.Uint16(p[40:])), int(le.Uint16(p[42:]))
	end := nameRecordSize + ns + key + parent
	if end > len(p) || max(ns, key, parent) > block.MaxKey || key == 0 || le.Uint32(p[4:]) != block.CRC(p[8:end]) {
		return 0, n, false
	}
	s := string(p[nameRecordSize:end])
	flags := le.Uint16(p[36:])
	n = block.Name{
		Namespace: s[:ns], Key: s[ns : ns+key], Parent: s[ns+key:],
		Depth: le.Uint32(p[32:]), Seq: le.Uint64(p[16:]),
		Prefix: flags&flagPrefix != 0, Bound: flags&flagBound != 0, Inferred: flags&flagInferred != 0,
	}
	if ns := int64(le.Uint64(p[24:])); ns != 0 {
		n.Expires = time.Unix(0, ns)
	}
	return le.Uint64(p[8:]), n, true
}

func layoutRecordLen(ns string, l block.Layout) int64 {
	return int64(layoutRecordSize + len(ns) + len(l.DType))
}

// writeLayout fills p, of layoutRecordLen bytes, and makes it valid as its last step.
func writeLayout(p []byte, ns string, seq uint64, l block.Layout) {
	clear(p[4:layoutRecordSize])
	le.PutUint64(p[8:], seq)
	l.AppendNumbers(p[:16])
	le.PutUint16(p[48:], uint16(len(ns)))
	le.PutUint16(p[50:], uint16(len(l.DType)))
	rest := p[layoutRecordSize:]
	copy(rest[copy(rest, ns):], l.DType)
	le.PutUint32(p[4:], block.CRC(p[8:layoutRecordLen(ns, l)]))
	publish(p, layoutMagic)
}

// readLayout reads the record at the start of the cell p.
func readLayout(p []byte) (ns string, seq uint64, l block.Layout, ok bool) {
	if len(p) < layoutRecordSize || le.Uint32(p) != layoutMagic {
		return "", 0, l, false
	}
	space, dtype := int(le.Uint16(p[48:])), int(le.Uint16(p[50:]))
	end := layoutRecordSize + space + dtype
	if end > len(p) || space > block.MaxKey || le.Uint32(p[4:]) != block.CRC(p[8:end]) {
		return "", 0, l, false
	}
	l.SetNumbers(p[16:])
	s := string(p[layoutRecordSize:end])
	l.DType = s[space:]
	return s[:space], le.Uint64(p[8:]), l, l.Check() == nil
}

// storeJob writes which job the process is in.
func storeJob(super []byte, job uint64) {
	(*atomic.Uint64)(unsafe.Pointer(&super[offJob])).Store(job)
}

// publish stores a record's magic after everything else in it. A process that
// dies has made its stores in program order; the atomic keeps the compiler and
// weaker processors to that order.
func publish(p []byte, magic uint32) { word(p).Store(magic) }

// retract makes a record invalid before the memory it points to is reused.
func retract(p []byte) { word(p).Store(0) }

// word is the aligned first word of a record: cells are multiples of 64 bytes.
func word(p []byte) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&p[0])) }

func loadReady(super []byte) int64 { return int64(le.Uint64(super[offReady:])) }

func storeReady(super []byte, n int64) {
	(*atomic.Uint64)(unsafe.Pointer(&super[offReady])).Store(uint64(n))
}

// storeMoving shows those who hold blocks whether blocks may be moved now.
func storeMoving(super []byte, moving bool) {
	n := uint32(0)
	if moving {
		n = 1
	}
	word(super[offMoving:]).Store(n)
}

func describe(fileSize int64) error {
	return fmt.Errorf("memory: %d bytes are too few for an arena; give it at least %d", fileSize, MinBytes)
}
