package slack

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// What a profile may have.
const (
	MaxProfileBytes = 16 << 20 // of its JSON
	MaxSteps        = 4096     // rows, and windows of a row
	MaxText         = 256      // bytes of Model, GPU and Configuration
	maxSMs          = 4096
	maxLayers       = 4096
	maxIOCBs        = 1 << 20 // of one launch
	maxTime         = time.Hour
)

// Format and Version are the first fields of a profile's JSON.
const (
	Format  = "cascade-slack-profile"
	Version = 1
)

// ErrProfile marks what is no profile, or one that contradicts itself.
var ErrProfile = errors.New("slack: not a profile")

// ErrOtherProfile marks a profile of another model, GPU or configuration.
var ErrOtherProfile = errors.New("slack: the profile is of another deployment")

// Key is what a profile is of. Tables hold for nothing else.
type Key struct {
	Model         string `json:"model"`         // name and revision, dtype
	GPU           string `json:"gpu"`           // its name as the driver has it
	Configuration string `json:"configuration"` // what else changes times: engine and version, parallelism, disks
}

// String returns the key for messages.
func (k Key) String() string {
	return fmt.Sprintf("%q on %q, %q", k.Model, k.GPU, k.Configuration)
}

// FileName is what the profile of a key is called in a folder of profiles.
func (k Key) FileName() string {
	h := sha256.New()
	for _, text := range []string{k.Model, k.GPU, k.Configuration} {
		fmt.Fprintf(h, "%d:%s,", len(text), text)
	}
	return "slack-" + hex.EncodeToString(h.Sum(nil)[:16]) + ".json"
}

// Row is the windows of prefills of one length, or of decode steps: entry k is that behind a
// prefix of k steps.
type Row struct {
	Time []time.Duration `json:"time_ns"` // of a layer; in Profile.Decode of a step, all its layers
	SMs  []int           `json:"sms"`     // that compute leaves free meanwhile
}

// Kernel is one launch of IOCBs, with nothing else in flight.
type Kernel struct {
	IOCBs int           `json:"iocbs"`
	Time  time.Duration `json:"time_ns"`
	SMs   int           `json:"sms"` // that it occupies
}

// Profile is the tables of one deployment. It is not changed once it is in use.
type Profile struct {
	Key

	Layers     int   `json:"layers"`
	SMs        int   `json:"sms"`         // of the GPU
	StepTokens int   `json:"step_tokens"` // between entries: what the 32 threads of a warp transfer, 32 blocks' tokens
	Transfers  int   `json:"transfers"`   // of an IOCB, at most
	IOCBBytes  int64 `json:"iocb_bytes"`  // that these move

	Decode  Row      `json:"decode"`
	Prefill []Row    `json:"prefill"` // entry i: of i+1 steps of new tokens
	Read    []Kernel `json:"read"`    // by count, from 1 on
	Write   []Kernel `json:"write"`
}

// encoded is a profile as JSON has it.
type encoded struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	*Profile
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProfile, fmt.Sprintf(format, args...))
}

// Encode returns p as JSON, as docs/gpu-store.md §2 has it. Errors: ErrProfile.
func (p *Profile) Encode() ([]byte, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(encoded{Format, Version, p})
	if err == nil && len(text) >= MaxProfileBytes {
		err = bad("%d bytes of JSON, less than %d wanted: take longer steps", len(text), MaxProfileBytes)
	}
	return append(text, '\n'), err
}

// Parse reads what Encode wrote. White space is free; anything else that Encode
// would not have written is refused: unknown, missing and repeated fields, another order.
// Errors: ErrProfile.
func Parse(text []byte) (*Profile, error) {
	if len(text) > MaxProfileBytes {
		return nil, bad("%d bytes, at most %d", len(text), MaxProfileBytes)
	}
	e := encoded{Profile: new(Profile)}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProfile, err)
	}
	if e.Format != Format || e.Version != Version {
		return nil, bad("format %q, version %d; this program reads %q, version %d", e.Format, e.Version, Format, Version)
	}
	if err := e.Check(); err != nil {
		return nil, err
	}
	var got, want bytes.Buffer
	canonical, err := json.Marshal(e)
	if err = errors.Join(err, json.Compact(&got, text), json.Compact(&want, canonical)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProfile, err)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		return nil, bad("a field is missing, repeated or in another place, or a number is not written as an integer")
	}
	return e.Profile, nil
}

// Of returns nil for a profile of that key. Errors: ErrOtherProfile.
func (p *Profile) Of(k Key) error {
	if p.Key != k {
		return fmt.Errorf("%w: it has %v, wanted is %v; make one for this deployment", ErrOtherProfile, p.Key, k)
	}
	return nil
}

// Check returns what is wrong with p. Errors: ErrProfile.
func (p *Profile) Check() error {
	for name, text := range map[string]string{"model": p.Model, "gpu": p.GPU, "configuration": p.Configuration} {
		if len(text) > MaxText || name != "configuration" && text == "" {
			return bad("%s has %d bytes, at most %d", name, len(text), MaxText)
		}
	}
	switch {
	case p.Layers < 1 || p.Layers > maxLayers:
		return bad("%d layers, 1 to %d wanted", p.Layers, maxLayers)
	case p.SMs < 1 || p.SMs > maxSMs:
		return bad("a GPU of %d SMs, 1 to %d wanted", p.SMs, maxSMs)
	case p.StepTokens < 1 || p.StepTokens > 1<<24:
		return bad("steps of %d tokens, 1 to %d wanted", p.StepTokens, 1<<24)
	case p.Transfers < 1 || p.Transfers > maxIOCBs || p.IOCBBytes < 1 || p.IOCBBytes > 1<<40:
		return bad("an IOCB of %d transfers and %d bytes", p.Transfers, p.IOCBBytes)
	case len(p.Prefill) < 1 || len(p.Prefill) > MaxSteps:
		return bad("%d rows of prefills, 1 to %d wanted", len(p.Prefill), MaxSteps)
	}
	if err := p.Decode.check(p.SMs); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	for i := range p.Prefill {
		if err := p.Prefill[i].check(p.SMs); err != nil {
			return fmt.Errorf("prefill, row %d: %w", i, err)
		}
		if i > 0 && len(p.Prefill[i].Time) > len(p.Prefill[i-1].Time) {
			return bad("prefill, row %d has %d windows, more than the row before it", i, len(p.Prefill[i].Time))
		}
	}
	if err := checkKernels(p.Read, p.SMs); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if err := checkKernels(p.Write, p.SMs); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func (r *Row) check(sms int) error {
	if len(r.Time) != len(r.SMs) || len(r.Time) < 1 || len(r.Time) > MaxSteps {
		return bad("%d times and %d budgets, as many of each and 1 to %d wanted", len(r.Time), len(r.SMs), MaxSteps)
	}
	for k, d := range r.Time {
		if d < 0 || d > maxTime || r.SMs[k] < 0 || r.SMs[k] > sms {
			return bad("window %d is %v with %d SMs", k, d, r.SMs[k])
		}
	}
	return nil
}

// checkKernels wants both time and SMs to grow with the count: fit searches by
// bisection.
func checkKernels(all []Kernel, sms int) error {
	if len(all) < 1 || len(all) > MaxSteps || all[0].IOCBs != 1 {
		return bad("%d launches, 1 to %d wanted, the first of one IOCB", len(all), MaxSteps)
	}
	for i, k := range all {
		if k.IOCBs > maxIOCBs || k.Time <= 0 || k.Time > maxTime || k.SMs < 0 || k.SMs > sms {
			return bad("a launch of %d IOCBs takes %v and %d SMs", k.IOCBs, k.Time, k.SMs)
		}
		if i > 0 && (k.IOCBs <= all[i-1].IOCBs || k.Time < all[i-1].Time || k.SMs < all[i-1].SMs) {
			return bad("a launch of %d IOCBs is less than one of %d", k.IOCBs, all[i-1].IOCBs)
		}
	}
	return nil
}
