package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"cascadekv/internal/testing/testneed"
)

// TestUnit: the unit is one that systemd reads without a complaint, and its user is made.
func TestUnit(t *testing.T) {
	home := unpacked(t)
	analyze := testneed.Program(t, "systemd-analyze", remedy)
	text, err := os.ReadFile(filepath.Join(home, "lib/systemd/system/cascaded.service"))
	if err != nil {
		t.Fatal(err)
	}
	// Where the programs of the unit are on this machine, if they are.
	unit := strings.NewReplacer("=/usr/bin/cascaded", "="+filepath.Join(home, "bin/cascaded"), "=/bin/kill", "=/bin/true").Replace(string(text))
	path := filepath.Join(t.TempDir(), "cascaded.service")
	verify := func(text string) string {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(analyze, "--man=no", "verify", path).CombinedOutput()
		if err != nil && len(out) == 0 {
			return err.Error()
		}
		return string(out)
	}
	if out := verify(unit); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	if verify(strings.Replace(unit, "KillMode=mixed", "KillMode=gently", 1)) == "" {
		t.Error("systemd-analyze verify takes anything")
	}

	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, testneed.Program(t, "systemd-sysusers", remedy), "--root="+root, filepath.Join(home, "lib/sysusers.d/cascade-kv.conf"))
	users, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || !strings.Contains(string(users), "cascade:") {
		t.Errorf("the users are %q, %v", users, err)
	}
}

const lmod = "/usr/share/lmod/lmod/init/bash"

// bash runs a script with the command module.
func bash(t *testing.T, script string, env ...string) string {
	t.Helper()
	_, err := os.Stat(lmod)
	testneed.That(t, err == nil, "Lmod", remedy)
	cmd := exec.Command("bash", "-c", "set -e; . "+lmod+"; "+script)
	cmd.Env = append(os.Environ(), append(env, "HOME="+t.TempDir())...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

func TestModulefile(t *testing.T) {
	home := unpacked(t)
	text, err := os.ReadFile(filepath.Join(home, "share/doc/cascade-kv/configs/lmod/cascade.lua"))
	if err != nil {
		t.Fatal(err)
	}
	// A site unpacks to /opt/cascade-kv/VERSION; this one elsewhere.
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "cascade-kv"), 0o755); err != nil {
		t.Fatal(err)
	}
	module := strings.Replace(string(text), `"/opt/cascade-kv"`, `"`+filepath.Dir(home)+`"`, 1)
	version := filepath.Base(home)
	if err := os.WriteFile(filepath.Join(dir, "cascade-kv", version+".lua"), []byte(module), 0o644); err != nil {
		t.Fatal(err)
	}
	out := bash(t, `module use "$DIR"; module load cascade-kv; command -v cascaded; cascade version >/dev/null; echo "$PYTHONPATH"; man -w cascade; module unload cascade-kv; command -v cascaded || echo gone`,
		"DIR="+dir, "PYTHONPATH=")
	for _, want := range []string{filepath.Join(home, "bin/cascaded"), filepath.Join(home, "share/cascade-kv/python"), filepath.Join(home, "share/man/man1/cascade.1.gz"), "gone"} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}

func TestEasyBuild(t *testing.T) {
	archive := built(t, "*-linux-x86_64.tar.gz")
	environment := os.Getenv("CASCADE_PACKAGE_EASYBUILD")
	_, err := os.Stat(filepath.Join(environment, "bin/python"))
	testneed.That(t, err == nil, "EasyBuild", "scripts/test-package installs it")
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(archive), "cascade-kv-"), "-linux-x86_64.tar.gz")
	prefix := t.TempDir()
	out := bash(t, `PATH=$EASYBUILD/bin:$PATH; python -m easybuild.main "$RECIPE" --prefix="$PREFIX" --sourcepath="$SOURCES" --try-software-version="$VERSION" --ignore-checksums $(test "$(id -u)" != 0 || echo --allow-use-as-root-and-accept-consequences)
		module use "$PREFIX/modules/all"; module load cascade-kv; command -v cascade; echo "$PYTHONPATH"`,
		"EASYBUILD="+environment, "PREFIX="+prefix, "VERSION="+version, "SOURCES="+filepath.Dir(archive), "RECIPE="+source(t, "configs/easybuild/cascade-kv-0.0.0.eb"))
	home := filepath.Join(prefix, "software/cascade-kv", version)
	for _, want := range []string{"[SUCCESS] cascade-kv/" + version, home + "/bin/cascade", home + "/share/cascade-kv/python"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}

// source returns the path of a file of the tree.
func source(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSpack: the recipe is Python and wants the Go of go.mod. Spack itself is in no package index: nothing here builds with it.
func TestSpack(t *testing.T) {
	python := testneed.Program(t, "python3", "install it")
	recipe := source(t, "configs/spack/package.py")
	run(t, python, "-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())", recipe)
	text, err := os.ReadFile(recipe)
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile(source(t, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(module)
	if version == nil || !strings.Contains(string(text), `depends_on("go@`+string(version[1])+`:"`) {
		t.Errorf("the recipe does not depend on Go %s", version[1])
	}
}
