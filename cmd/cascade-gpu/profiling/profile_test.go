package profiling

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/cmd/cascade-bench/giobench"
	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/cmd/cascade-bench/slackbench"
	"cascadekv/gpu/gio"
	"cascadekv/gpu/slack"
	"cascadekv/internal/testing/race"
)

func TestMain(m *testing.M) {
	giobench.DeviceMain()
	os.Exit(m.Run())
}

// small is a deployment that takes little I/O.
func small(t *testing.T) Options {
	m := slackbench.Llama8B()
	m.BlockTokens, m.KVBytes, m.Transfers, m.MaxTokens = 16, 1024, 2, 2048
	return Options{Key: slack.Key{Model: "m", GPU: "g", Configuration: "tp=1"}, Folder: filepath.Join(t.TempDir(), "profiles"), Figures: m,
		Disk: giobench.LaunchOptions{Dir: t.TempDir(), Most: 4, Rounds: 1, Engine: gio.EngineUser, Log: os.Stderr}}
}

// TestMake: a profile is measured once, is read back by the next, and made anew on demand and
// for another key.
func TestMake(t *testing.T) {
	if race.On {
		t.Skip("the race detector makes system calls")
	}
	o := small(t)
	first, err := Make(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	p := first.Profile
	if first.Reused || first.Disk.Errors != 0 || !strings.HasPrefix(first.Windows, "computed, not measured: 380 TFLOP/s") || p.Key != o.Key {
		t.Errorf("%+v", first)
	}
	if p.StepTokens != 512 || p.IOCBBytes != 16<<10 || len(p.Prefill) != 4 || len(p.Read) != 3 || len(p.Write) != 3 || p.Read[2].IOCBs != 4 || p.Read[2].SMs != 2 {
		t.Errorf("%+v", p)
	}
	again, err := Make(t.Context(), o)
	if err != nil || !again.Reused || again.Disk != nil || again.Windows != "" {
		t.Fatalf("%+v, %v", again, err)
	}
	was, err1 := first.Profile.Encode()
	is, err2 := again.Profile.Encode()
	if err1 != nil || err2 != nil || string(was) != string(is) {
		t.Errorf("written %s, read %s, %v, %v", was, is, err1, err2)
	}
	o.Force = true
	if forced, err := Make(t.Context(), o); err != nil || forced.Reused || forced.Disk == nil {
		t.Errorf("%+v, %v", forced, err)
	}
	o.Force, o.Configuration = false, "tp=2"
	if other, err := Make(t.Context(), o); err != nil || other.Reused || other.Path == first.Path {
		t.Errorf("of another configuration: %+v, %v", other, err)
	}
	if files, err := os.ReadDir(o.Folder); err != nil || len(files) != 2 {
		t.Errorf("in the folder: %v, %v", files, err)
	}
}

// TestBroken: what is no profile, or one of another key, is not replaced unasked; figures that make none
// are refused before anything is measured.
func TestBroken(t *testing.T) {
	o := small(t)
	if err := os.MkdirAll(o.Folder, 0o755); err != nil {
		t.Fatal(err)
	}
	other := o.Figures.Profile()
	text, err := other.Encode()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(o.Folder, o.FileName())
	for want, content := range map[error]string{slack.ErrProfile: "{}", slack.ErrOtherProfile: string(text)} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Make(t.Context(), o); !errors.Is(err, want) || !strings.Contains(err.Error(), "--force") {
			t.Errorf("%v, want %v", err, want)
		}
	}
	o.Force, o.Disk.Dir = true, "/nonexistent"
	for what, change := range map[string]func(*Options){
		"no layers": func(o *Options) { o.Figures.Layers = 0 }, "no compute": func(o *Options) { o.Figures.Flops = 0 },
		"no block": func(o *Options) { o.Figures.BlockTokens = 0 }, "no model": func(o *Options) { o.Model = "" }, "no prompt": func(o *Options) { o.Figures.MaxTokens = 511 },
	} {
		bad := o
		change(&bad)
		if _, err := Make(t.Context(), bad); !errors.Is(err, slack.ErrProfile) {
			t.Errorf("%s: %v", what, err)
		}
	}
	odd := o
	odd.Figures.KVBytes = 1000
	if _, err := Make(t.Context(), odd); !errors.Is(err, kit.ErrBadOption) {
		t.Errorf("transfers of no whole pages: %v", err)
	}
}

// TestKernels: times never fall with the count.
func TestKernels(t *testing.T) {
	got := kernels([]slack.Kernel{{IOCBs: 1, SMs: 2}, {IOCBs: 2, SMs: 2}, {IOCBs: 4, SMs: 4}},
		[]giobench.Launch{{IOCBs: 1, Time: 5 * time.Millisecond}, {IOCBs: 2, Time: 4 * time.Millisecond}, {IOCBs: 4, Time: 9 * time.Millisecond}})
	want := []slack.Kernel{{IOCBs: 1, Time: 5 * time.Millisecond, SMs: 2}, {IOCBs: 2, Time: 5 * time.Millisecond, SMs: 2}, {IOCBs: 4, Time: 9 * time.Millisecond, SMs: 4}}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
