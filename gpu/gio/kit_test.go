package gio

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// kitFigures is what the process beside a GPU reports of its reads.
type kitFigures struct {
	Engine      string  `json:"engine"`
	Reads       int     `json:"reads"`
	FailedReads int     `json:"failed_reads"`
	WrongBlocks int     `json:"wrong_blocks"`
	GBs         float64 `json:"gb_s"`
}

// beHostOfGPU is gpu-kit's process beside a GPU: it makes a file, serves it to
// whoever is at descriptor 3, who runs the device, reads so many rounds and
// compares all bytes. Arguments: the file, the engine, rounds.
func beHostOfGPU() error {
	c, err := inherited(3)
	if err != nil {
		return err
	}
	rounds, err := strconv.Atoi(os.Args[3])
	if err != nil {
		return err
	}
	if err := os.WriteFile(os.Args[1], pattern(0, fileBlocks*blockBytes), 0o600); err != nil {
		return err
	}
	f, err := os.OpenFile(os.Args[1], os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	s, err := Serve(Options{Depth: 8, NumIOCTX: 16, Files: []*os.File{f}, DataBytes: dataBytes, Engine: os.Args[2]})
	if err != nil {
		return err
	}
	if err := s.Send(c); err != nil {
		return err
	}
	figures, err := readRounds(s.Queue(), rounds)
	if err != nil {
		return err
	}
	figures.Engine = os.Args[2]
	if err := json.NewEncoder(os.Stdout).Encode(figures); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// readRounds issues all IOCBs of a queue so many times, and stops the device.
func readRounds(q *Queue, rounds int) (f kitFigures, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	got, err := q.GetIOCB(8, &Event{Word: 1, Value: 1})
	if err != nil {
		return f, err
	}
	var took time.Duration
	for round := range rounds {
		var ids []uint32
		q.Word(1).Store(0)
		clear(q.Data())
		for k, b := range got {
			fill(b, round+k, 16, Read)
			ids = append(ids, b.ID)
		}
		if err := q.IssueIO(ids, 0); err != nil {
			return f, err
		}
		began := time.Now()
		q.Word(1).Store(1)
		for _, b := range got {
			var failed *IOError
			if err := q.WaitCQE(ctx, b.ID); err != nil && !errors.As(err, &failed) {
				return f, fmt.Errorf("round %d: %w", round, err)
			}
		}
		took += time.Since(began)
		for _, b := range got {
			for i := range 16 {
				f.Reads++
				if b.Failed(i) {
					f.FailedReads++
				} else if !bytes.Equal(q.Data()[cell(b, i):][:blockBytes], pattern(b.Ctx[i].Offset, blockBytes)) {
					f.WrongBlocks++
				}
			}
		}
	}
	f.GBs = float64(f.Reads*blockBytes) / 1e9 / took.Seconds()
	q.StopDevice()
	for ctx.Err() == nil && q.r.h.device.Load() != deviceEnded {
		time.Sleep(time.Millisecond)
	}
	return f, ctx.Err()
}

// TestKitHost: the process that gpu-kit starts serves a device elsewhere.
func TestKitHost(t *testing.T) {
	theirs, ours := pair(t)
	cmd, out := start(t, "gpu", theirs, t.TempDir()+"/data", EngineUser, "3")
	ring, data, err := receive(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(ring), unix.Close(data) }()
	r, err := mapRegion(ring)
	if err != nil {
		t.Fatal(err)
	}
	d := &Device{r: r, mapped: true}
	d.run(nil)
	var f kitFigures
	if err := json.NewDecoder(out).Decode(&f); err != nil {
		t.Fatal(err)
	}
	if want := (kitFigures{EngineUser, 3 * 8 * 16, 0, 0, f.GBs}); f != want {
		t.Errorf("%+v, want %+v", f, want)
	}
	if err := errors.Join(cmd.Wait(), d.Close()); err != nil {
		t.Error(err)
	}
}
