package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cascadekv/internal/block"
	"cascadekv/internal/crc32c"
	"cascadekv/internal/vfs"
)

// Magic numbers of both kinds of files, and their versions. A log of version 1 has no
// notes.
const (
	logMagic         = "CASCNVL\n"
	containerMagic   = "CASCNVP\n"
	logVersion       = 2
	containerVersion = 1
	endianness       = 0x01020304
)

// versionOf is the version of new files, and the newest that is read.
func versionOf(magic string) uint16 {
	if magic == logMagic {
		return logVersion
	}
	return containerVersion
}

// errFormat marks what is not a file of this package, or is of another pool.
var errFormat = errors.New("not a file of this pool")

// header is the first page of each file.
type header struct {
	magic      string
	pool       uint64 // number of the pool, drawn when it was made
	layout     layout
	number     uint32 // of a container
	generation uint64 // of a log
}

// encode returns the page.
func (h header) encode() []byte {
	p := make([]byte, 0, page)
	le := binary.LittleEndian
	p = append(p, h.magic...)
	p = le.AppendUint16(p, versionOf(h.magic))
	p = le.AppendUint16(p, 0) // features
	p = le.AppendUint32(p, endianness)
	p = le.AppendUint64(p, h.pool)
	p = le.AppendUint64(p, h.generation)
	p = le.AppendUint64(p, uint64(h.layout.bytes))
	p = le.AppendUint32(p, uint32(h.layout.objects))
	p = le.AppendUint32(p, uint32(h.layout.dirs))
	p = le.AppendUint32(p, uint32(h.layout.each))
	p = le.AppendUint32(p, h.number)
	p = p[:page]
	le.PutUint32(p[page-4:], crc32c.Checksum(p[:page-4]))
	return p
}

// headerCRC is the checksum of an encoded header, which all records behind it
// continue.
func headerCRC(p []byte) uint32 { return binary.LittleEndian.Uint32(p[page-4:]) }

// decodeHeader reads a page. Errors: errFormat.
func decodeHeader(p []byte, magic string) (header, error) {
	le := binary.LittleEndian
	switch {
	case len(p) != page || string(p[:8]) != magic:
		return header{}, fmt.Errorf("%w: no magic number", errFormat)
	case le.Uint32(p[page-4:]) != crc32c.Checksum(p[:page-4]):
		return header{}, fmt.Errorf("%w: its header is damaged", errFormat)
	case le.Uint16(p[8:]) < 1 || le.Uint16(p[8:]) > versionOf(magic) || le.Uint16(p[10:]) != 0 || le.Uint32(p[12:]) != endianness:
		return header{}, fmt.Errorf("%w: version %d with features %#x", errFormat, le.Uint16(p[8:]), le.Uint16(p[10:]))
	}
	return header{magic: magic, pool: le.Uint64(p[16:]), generation: le.Uint64(p[24:]), number: le.Uint32(p[52:]),
		layout: layout{bytes: int64(le.Uint64(p[32:])), objects: int(le.Uint32(p[40:])), dirs: int(le.Uint32(p[44:])), each: int(le.Uint32(p[48:]))}}, nil
}

// Kinds of records.
const (
	kindRegister = 1 // a block lies in a GPU file
	kindRemove   = 2 // that file has none any more
	kindEnd      = 3 // all blocks of the log before are here; file is their number
	kindNote     = 4 // of the store's user
)

const (
	headBytes   = 24 // of each record
	recordBytes = 56 // of one without checksums that is no note
)

// MaxNote bounds a note of the store's user, in bytes.
const MaxNote = 16 << 10

// record is one change.
type record struct {
	kind uint8
	file uint32
	id   block.ID
	crcs []uint32 // of a kindRegister, by object
	note []byte   // of a kindNote
}

// appendRecord appends a record, with its number in the log from 1 on.
func appendRecord(p []byte, seed uint32, seq uint64, r record) []byte {
	le, begin := binary.LittleEndian, len(p)
	p = le.AppendUint64(p, 0) // checksum and length, see below
	p = le.AppendUint64(p, seq)
	p = append(p, r.kind, 0, 0, 0)
	p = le.AppendUint32(p, r.file)
	if r.kind == kindNote {
		p = append(p, r.note...)
	} else {
		p = append(p, r.id[:]...)
		for _, c := range r.crcs {
			p = le.AppendUint32(p, c)
		}
	}
	le.PutUint32(p[begin+4:], uint32(len(p)-begin))
	le.PutUint32(p[begin:], crc32c.Update(seed, p[begin+4:]))
	return p
}

// errEnd is where a log ends: nothing, or what is no record of it, follows.
var errEnd = errors.New("end of the log")

// recordRoom is the size of the largest record of a log of so many objects.
func recordRoom(objects int) int { return max(recordBytes+4*objects, headBytes+MaxNote) }

// readRecord reads the record with number seq of a log of so many objects, into
// buf, of recordRoom bytes. The note of the record lies there. Errors: errEnd.
func readRecord(in io.Reader, buf []byte, seed uint32, seq uint64, objects int) (record, error) {
	le := binary.LittleEndian
	if _, err := io.ReadFull(in, buf[:headBytes]); err != nil {
		return record{}, errEnd
	}
	r := record{kind: buf[16], file: le.Uint32(buf[20:])}
	n, right := int64(le.Uint32(buf[4:])), false
	switch r.kind {
	case kindNote:
		right = n >= headBytes && n <= headBytes+MaxNote
	case kindRegister:
		right = n == int64(recordBytes+4*objects)
	default:
		right = n == recordBytes
	}
	if !right || le.Uint64(buf[8:]) != seq {
		return record{}, errEnd
	}
	if _, err := io.ReadFull(in, buf[headBytes:n]); err != nil || crc32c.Update(seed, buf[4:n]) != le.Uint32(buf) {
		return record{}, errEnd
	}
	if r.kind == kindNote {
		r.note = buf[headBytes:n]
		return r, nil
	}
	r.id = block.ID(buf[headBytes:recordBytes])
	for at := int64(recordBytes); at < n; at += 4 {
		r.crcs = append(r.crcs, le.Uint32(buf[at:]))
	}
	return r, nil
}

// replay reads a log whose header page is first, calls note with its notes, in order, and returns which
// block each GPU file has. It stops at the first record that is not as it was written. Errors: errFormat, also for
// one whose kindEnd is not there: it was not finished, and its notes mean nothing.
func replay(in io.Reader, first []byte, note func([]byte)) (header, map[uint32]record, error) {
	h, err := decodeHeader(first, logMagic)
	if err == nil && (h.layout.objects < 1 || h.layout.objects > maxObjects) {
		err = fmt.Errorf("%w: %d objects", errFormat, h.layout.objects)
	}
	if err != nil {
		return h, nil, err
	}
	files, ended := map[uint32]record{}, false
	buf := make([]byte, recordRoom(h.layout.objects))
	for seq := uint64(1); ; seq++ {
		r, err := readRecord(in, buf, headerCRC(first), seq, h.layout.objects)
		if err != nil {
			break
		}
		switch r.kind {
		case kindRegister:
			files[r.file] = r
		case kindRemove:
			if files[r.file].id == r.id {
				delete(files, r.file)
			}
		case kindEnd:
			if ended || int(r.file) != len(files) {
				return h, nil, fmt.Errorf("%w: it has %d blocks where it counts %d", errFormat, len(files), r.file)
			}
			ended = true
		case kindNote:
			note(r.note)
		}
	}
	if !ended {
		return h, nil, fmt.Errorf("%w: it was not finished", errFormat)
	}
	return h, files, nil
}

// sectionReader reads a file from an offset on.
type sectionReader struct {
	f        vfs.File
	at, size int64
}

func (r *sectionReader) Read(p []byte) (int, error) {
	p = p[:min(int64(len(p)), r.size-r.at)]
	if len(p) == 0 {
		return 0, io.EOF
	}
	n, err := r.f.Pread(p, r.at)
	r.at += int64(n)
	return n, err
}

const (
	logPrefix, logSuffix = "index-", ".log"
	unfinished           = ".tmp"
)

func logName(generation uint64) string {
	return fmt.Sprintf("%s%016x%s", logPrefix, generation, logSuffix)
}

// logNames lists the logs in a directory, the newest first.
func logNames(fs vfs.FS, dir string) ([]string, error) {
	names, err := fs.ReadDir(dir)
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, logPrefix) || !strings.HasSuffix(n, logSuffix) })
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(b, a) })
	return names, err
}

// readLog replays one log.
func readLog(fs vfs.FS, path string, note func([]byte)) (header, map[uint32]record, error) {
	f, err := fs.Open(path)
	if err != nil {
		return header{}, nil, err
	}
	defer f.Close() // only read: its error does not matter
	size, err := f.Size()
	if err != nil {
		return header{}, nil, err
	}
	first := make([]byte, page)
	if _, err := f.Pread(first, 0); err != nil {
		return header{}, nil, fmt.Errorf("%w: %w", errFormat, err)
	}
	return replay(bufio.NewReaderSize(&sectionReader{f, page, size}, 1<<20), first, note)
}

// journal is the log that is written to. It is used by one goroutine at a time.
type journal struct {
	fs     vfs.FS
	path   string
	f      vfs.File
	seed   uint32
	seq    uint64
	size   int64
	notes  int64 // bytes of notes that it began with
	dirty  bool  // a record is not durable
	failed error // a write has failed: what is behind size is unknown, and nothing is added
	buf    []byte
}

// newJournal writes a log of its own generation with these blocks and notes, and makes it
// durable. It is renamed before its first fsync, the order that no loss of power can undo.
func newJournal(fs vfs.FS, dir string, h header, blocks []record, notes func(func([][]byte) error) error) (*journal, error) {
	final := filepath.Join(dir, logName(h.generation))
	if err := fs.Remove(final + unfinished); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	f, err := fs.Create(final+unfinished, 0o600)
	if err != nil {
		return nil, err
	}
	first := h.encode()
	j := &journal{fs: fs, path: final, f: f, seed: headerCRC(first), size: page}
	if _, err = f.Pwrite(first, 0); err == nil {
		err = j.begin(blocks, notes)
	}
	if err == nil {
		err = fs.Rename(final+unfinished, final)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), drop(fs, final+unfinished), drop(fs, final))
	}
	j.dirty = false
	return j, nil
}

// begin writes what a log begins with.
func (j *journal) begin(blocks []record, notes func(func([][]byte) error) error) error {
	for part := range slices.Chunk(blocks, 1024) {
		if err := j.append(part...); err != nil {
			return err
		}
	}
	before := j.size
	if err := notes(func(some [][]byte) error { return j.append(noteRecords(some)...) }); err != nil {
		return err
	}
	j.notes = j.size - before
	return j.append(record{kind: kindEnd, file: uint32(len(blocks))})
}

func noteRecords(notes [][]byte) []record {
	all := make([]record, len(notes))
	for i, n := range notes {
		all[i] = record{kind: kindNote, note: n}
	}
	return all
}

// drop removes a file that may not be there.
func drop(fs vfs.FS, path string) error {
	if err := fs.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// append writes records in one piece.
func (j *journal) append(all ...record) error {
	if j.failed != nil || len(all) == 0 {
		return j.failed
	}
	j.buf = j.buf[:0]
	for _, r := range all {
		j.seq++
		j.buf = appendRecord(j.buf, j.seed, j.seq, r)
	}
	if _, err := j.f.Pwrite(j.buf, j.size); err != nil {
		j.failed = err
		return err
	}
	j.size += int64(len(j.buf))
	j.dirty = true
	return nil
}

// sync makes all records durable.
func (j *journal) sync() error {
	if j.failed == nil && j.dirty {
		j.failed = j.f.Sync() // the kernel reports an error once, so it stays
		j.dirty = false
	}
	return j.failed
}
