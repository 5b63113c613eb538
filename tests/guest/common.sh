# The common beginning of the guests' init scripts, which source it. It mounts the kernel's file systems, loads the
# modules, and starts the watchdog. `pf.time_s` on the kernel's command line is the watchdog's time limit.
export PATH=/bin
/bin/busybox --install -s /bin

# Prints the value of parameter $1 of the kernel's command line, or the default $2.
parameter() {
    value=$(sed -n "s/.*pf\.$1=\([^ ]*\).*/\1/p" /proc/cmdline)
    echo "${value:-$2}"
}

# Prints the result and powers off.
finish() {
    echo "RESULT: $*"
    # Power off through the kernel: an orderly shutdown would need memory.
    echo o >/proc/sysrq-trigger
    sleep 60
}

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
# The kernel prints the stacks of tasks that wait for a long time, which works even if no process can allocate memory.
echo 60 >/proc/sys/kernel/hung_task_timeout_secs
echo 6 >/proc/sys/kernel/printk
for module in /modules/*.ko; do
    [ ! -e "$module" ] || insmod "$module"
done

(
    sleep "$(parameter time_s 240)"
    echo "watchdog: taking too long; blocked tasks:"
    echo w >/proc/sysrq-trigger
    echo m >/proc/sysrq-trigger
    finish "failed: not done in time"
) &
