"""The image of remote.py: Python with NumPy, a JVM and a few other programs, as Debian's packages have them.

apt resolves the packages and all that they depend on as for an empty machine, and downloads them; dpkg unpacks them into
one tree. No script of a package runs. This file makes what programs need of the results of such scripts: the cache of the dynamic
linker, the list of users, and the JVM's archive of classes. The image has the default options of `image build`.

The image stays in bench/out, because making it takes minutes; remove it to have it made again.
"""

import os
import subprocess

PACKAGES = ["base-files", "bash", "coreutils", "findutils", "python3", "python3-numpy", "default-jre-headless", "git", "perl",
            "gcc", "g++", "nodejs", "openssh-client", "sqlite3", "gdb", "postgresql-15"]
LINKS = ["bin", "sbin", "lib", "lib64"]
JAVA = "/usr/lib/jvm/java-17-openjdk-amd64/bin/java"
# NumPy's libraries are where Debian's alternatives would link to.
LIBRARIES = "/usr/lib/x86_64-linux-gnu/openblas-pthread:/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack"
# The first work of a program: Python solves equations with NumPy, and the JVM sets up TLS with its certificates and ciphers.
FIRST_WORK = {
    "python": ["/usr/bin/python3", "-c",
               "import numpy as n; a = n.arange(9.).reshape(3, 3) + n.eye(3); print(n.linalg.solve(a, [1, 2, 3]))"],
    "jvm": [JAVA, "-m", "java.base/sun.security.tools.keytool.Main", "-showinfo", "-tls"],
}
# Eight programs, with arguments that make each do a little.
LAUNCHED = [
    ["/usr/bin/python3", "-c", "import json, email, http.client"], ["/usr/bin/perl", "-MPOSIX", "-e", "1"],
    ["/usr/bin/bash", "-c", "true"], ["/usr/bin/git", "--version"], ["/usr/bin/gcc", "--version"],
    ["/usr/bin/node", "--version"], ["/usr/bin/ssh", "-V"], ["/usr/bin/sqlite3", "--version"],
]


def run_in(root, words, check=True):
    """Runs a program with the folder as its root, with /proc and /dev of this machine, and a file system in memory for /tmp."""
    # The mounts are those of a namespace, and end with the program.
    script = ('mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/tmp" && '
              'exec chroot "$0" "$@"')
    environment = {"PATH": "/usr/bin:/usr/sbin", "LD_LIBRARY_PATH": LIBRARIES, "HOME": "/tmp", "OPENBLAS_NUM_THREADS": "1",
                   "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, root, *words]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} in {root}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done


def make_tree(folder, tree):
    """Downloads and unpacks the packages."""
    archives, status = os.path.join(folder, "archives"), os.path.join(folder, "status")
    os.makedirs(os.path.join(archives, "partial"))
    with open(status, "w", encoding="ascii"):
        pass
    apt = ["apt-get", "-qq", "-o", f"Dir::State::status={status}", "-o", f"Dir::Cache::archives={archives}", "-o",
           "APT::Sandbox::User=root", "--no-install-recommends", "--yes", "--download-only", "install", *PACKAGES]
    subprocess.run(apt, check=True, stdout=subprocess.DEVNULL)
    for name in LINKS:
        os.makedirs(os.path.join(tree, "usr", name))
        os.symlink(f"usr/{name}", os.path.join(tree, name))
    for name in sorted(os.listdir(archives)):
        path = os.path.join(archives, name)
        if name.endswith(".deb"):
            # dpkg-deb itself would put a folder in the place of a link.
            with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE) as package:
                subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", tree], stdin=package.stdout, check=True)
            os.remove(path)
    with open(os.path.join(tree, "etc/passwd"), "w", encoding="ascii") as file:
        file.write("root:x:0:0:root:/root:/bin/sh\n")
    subprocess.run(["ldconfig", "-r", tree], check=True, stderr=subprocess.DEVNULL)
    run_in(tree, [JAVA, "-Xshare:dump"])


def remote_image(pagefold, kept, folder):
    """Returns the path of the image; makes it if it is not in the folder `kept`."""
    image = os.path.join(kept, "remote.erofs")
    if not os.path.exists(image):
        tree = os.path.join(folder, "tree")
        os.makedirs(tree)
        os.makedirs(kept, exist_ok=True)
        make_tree(folder, tree)
        for words in [*FIRST_WORK.values(), *LAUNCHED]:
            run_in(tree, words)
        made = os.path.join(folder, "remote.erofs")
        subprocess.run([pagefold, "image", "build", tree, made], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cp", made, image + ".new"], check=True)
        os.rename(image + ".new", image)
        subprocess.run(["rm", "-rf", tree, made], check=True)
    return image
