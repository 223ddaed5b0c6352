package jetstream

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// lockChildEnv, when set, turns the test binary into a process that locks the named directory and holds it until its
// standard input ends.
const lockChildEnv = "ALLOCNODE_TEST_LOCK_DIR"

func init() {
	dir := os.Getenv(lockChildEnv)
	if dir == "" {
		return
	}
	lock, err := LockDir(dir)
	fmt.Println(err)
	if err == nil {
		bufio.NewReader(os.Stdin).ReadByte()
		lock.Close()
	}
	os.Exit(0)
}

// Checked by taking the flock call out: the second LockDir then succeeds.
func TestLockDirSecondTakerInProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made directory: mode %v, error %v; want 0700", info.Mode().Perm(), err)
	}
	_, err = LockDir(dir)
	wantError(t, err, dir, fmt.Sprint(os.Getpid()), "directory of its own")
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	again, err := LockDir(dir)
	if err != nil {
		t.Fatalf("LockDir after Close: %v", err)
	}
	again.Close()
}

func TestLockDirOtherProcess(t *testing.T) {
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(exe)
	child.Env = append(os.Environ(), lockChildEnv+"="+dir)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Process.Kill()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "<nil>" {
		t.Fatalf("child says %q, %v; want that it has the lock", line, err)
	}

	_, err = LockDir(dir)
	wantError(t, err, dir, fmt.Sprintf("process %d", child.Process.Pid))

	// Killed, not closed: the kernel must drop the lock.
	child.Process.Kill()
	child.Wait()
	stdin.Close()
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatalf("LockDir after the holder was killed: %v", err)
	}
	lock.Close()
}

func TestLockDirUnusable(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	blocked := filepath.Join(root, "blocked")
	if err := os.MkdirAll(filepath.Join(blocked, lockName), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, dir, want string }{
		{"empty", "", "no directory given"},
		{"file", file, "it is a file"},
		{"below a file", filepath.Join(file, "sub"), "not a directory"},
		{"LOCK cannot be opened", blocked, "must be writable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := LockDir(tc.dir)
			wantError(t, err, tc.dir, tc.want)
		})
	}
}

// wantError fails the test unless err is one line that holds every part.
func wantError(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", parts)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has several lines: %q", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q; want it to contain %q", err, part)
		}
	}
}
