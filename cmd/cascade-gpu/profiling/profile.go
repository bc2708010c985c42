package profiling

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"cascadekv/cmd/cascade-bench/giobench"
	"cascadekv/cmd/cascade-bench/slackbench"
	"cascadekv/gpu/slack"
)

// Options are what a profile is made of.
type Options struct {
	slack.Key                  // all of it in the file's name
	Folder    string           // of profiles; made where it is missing
	Force     bool             // measure, and replace a profile that is there
	Figures   slackbench.Model // of the GPU and the model's layers; its rates of I/O are not used
	Disk      giobench.LaunchOptions
}

// Report is what became of a profile.
type Report struct {
	slack.Key
	Path    string             `json:"path"`
	Reused  bool               `json:"reused"`            // it was there: nothing was measured
	Windows string             `json:"windows,omitempty"` // where compute windows are from; "" for a profile that was there
	Disk    *giobench.Launches `json:"disk,omitempty"`
	Profile *slack.Profile     `json:"-"`
}

// ErrWrong marks a measurement in which a transfer failed or moved wrong bytes.
var ErrWrong = errors.New("profile: the disk was not measured")

// Make returns the profile of a key from the folder, or measures the disk and writes one there. Errors:
// slack.ErrProfile for figures that make none, and for a file that is none; slack.ErrOtherProfile;
// ErrWrong; those of giobench.RunLaunches and of the file system.
func Make(ctx context.Context, o Options) (*Report, error) {
	r := &Report{Key: o.Key, Path: filepath.Join(o.Folder, o.FileName())}
	if !o.Force {
		switch p, err := read(r.Path, o.Key); {
		case err == nil:
			r.Reused, r.Profile = true, p
			return r, nil
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("profile: %s: %w; --force makes it anew", r.Path, err)
		}
	}
	if err := o.Figures.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", slack.ErrProfile, err)
	}
	p := o.Figures.Profile()
	p.Key = o.Key
	if err := p.Check(); err != nil { // before minutes of I/O
		return nil, err
	}
	o.Disk.Size, o.Disk.Transfers = o.Figures.TransferBytes(), o.Figures.Transfers
	launches, err := giobench.RunLaunches(ctx, o.Disk)
	if err != nil {
		return nil, err
	}
	if launches.Errors > 0 {
		return nil, fmt.Errorf("%w: %d transfers failed or moved wrong bytes: see the kernel's log for errors of the disk of %s", ErrWrong, launches.Errors, o.Disk.Dir)
	}
	p.Read, p.Write = kernels(p.Read, launches.Read), kernels(p.Write, launches.Write)
	r.Disk, r.Profile = launches, p
	r.Windows = fmt.Sprintf("computed, not measured: %.4g TFLOP/s, %.4g GB/s of device memory, %d SMs of which a layer leaves %d",
		o.Figures.Flops/1e12, o.Figures.Memory/1e9, o.Figures.SMs, o.Figures.FreeSMs)
	text, err := p.Encode()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Folder, 0o755); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return r, replace(r.Path, text)
}

// read returns the profile of a file.
func read(path string, key slack.Key) (*slack.Profile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p, err := slack.Parse(text)
	if err != nil {
		return nil, err
	}
	return p, p.Of(key)
}

// kernels gives what was measured the SMs that the figures have for it. Larger launches take no less time
// than smaller ones, which one unlucky turn may have had otherwise.
func kernels(figures []slack.Kernel, measured []giobench.Launch) []slack.Kernel {
	sms := map[int]int{}
	for _, k := range figures {
		sms[k.IOCBs] = k.SMs
	}
	var least time.Duration
	all := make([]slack.Kernel, len(measured))
	for i, l := range measured {
		least = max(least, l.Time)
		all[i] = slack.Kernel{IOCBs: l.IOCBs, Time: least, SMs: sms[l.IOCBs]}
	}
	return all
}

// replace writes a file that is whole or not there, and durable.
func replace(path string, text []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".slack-*")
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("profile: write %s: %w", path, err), os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}
