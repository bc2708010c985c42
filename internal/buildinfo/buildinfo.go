package buildinfo

import (
	"runtime"
	"runtime/debug"
)

// Info is what the toolchain recorded of this program.
type Info struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Read returns the running program's Info.
func Read() Info {
	v := Info{Version: "(unknown)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// Version is the shortest text that distinguishes one build from another.
func Version() string {
	v := Read()
	if v.Revision == "" {
		return v.Version
	}
	return v.Version + "+" + v.Revision[:min(len(v.Revision), 12)]
}
