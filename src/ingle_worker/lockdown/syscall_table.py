"""Decision for each system call of kernels up to 6.18: allowed, forbidden or absent.

Calls that are not listed are absent, so new calls need a decision first. A forbidden call fails with "not permitted",
which tells people more where programs are known to try it. Each name is followed by its numbers on x86_64 and aarch64.
"""

MACHINES = ("x86_64", "aarch64")

LET_THROUGH = {
    "files and folders": """
        read 0 63, write 1 64, open 2 -, openat 257 56, creat 85 -, close 3 57, close_range 436 436,
        lseek 8 62, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, preadv 295 69, pwritev 296 70,
        preadv2 327 286, pwritev2 328 287, dup 32 23, dup2 33 -, dup3 292 24, fcntl 72 25, ioctl 16 29, flock 73 32,
        fsync 74 82, fdatasync 75 83, sync 162 81, syncfs 306 267, sync_file_range 277 84, truncate 76 45,
        ftruncate 77 46, fallocate 285 47, fadvise64 221 223, readahead 187 213, sendfile 40 71, splice 275 76,
        tee 276 77, copy_file_range 326 285, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291,
        statfs 137 43, fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439, getdents 78 -,
        getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -,
        unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -,
        symlinkat 266 36, readlink 89 -, readlinkat 267 78, mknod 133 -, mknodat 259 33, chmod 90 -, fchmod 91 52,
        fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54, umask 95 166,
        utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88
    """,
    "attributes of files": """
        setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10,
        listxattr 194 11, llistxattr 195 12, flistxattr 196 13, removexattr 197 14, lremovexattr 198 15,
        fremovexattr 199 16
    """,
    "waiting for descriptors": """
        poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20,
        epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19,
        signalfd 282 -, signalfd4 289 74, timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87,
        pipe 22 -, pipe2 293 59, inotify_init 253 -, inotify_init1 294 26, inotify_add_watch 254 27,
        inotify_rm_watch 255 28
    """,
    "sockets": """
        socket 41 198, socketpair 53 199, bind 49 200, listen 50 201, accept 43 202, accept4 288 242, connect 42 203,
        shutdown 48 210, getsockname 51 204, getpeername 52 205, setsockopt 54 208, getsockopt 55 209, sendto 44 206,
        recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243
    """,
    "memory": """
        brk 12 214, mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, mincore 27 232,
        msync 26 227, mlock 149 228, mlock2 325 284, munlock 150 229, mlockall 151 230, munlockall 152 231,
        membarrier 324 283, memfd_create 319 279, pkey_alloc 330 289, pkey_free 331 290, pkey_mprotect 329 288,
        map_shadow_stack 453 453
    """,
    "between the processes of a session": """
        shmget 29 194, shmat 30 196, shmdt 67 197, shmctl 31 195, semget 64 190, semop 65 193, semtimedop 220 192,
        semctl 66 191, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180, mq_unlink 241 181,
        mq_timedsend 242 182, mq_timedreceive 243 183, mq_notify 244 184, mq_getsetattr 245 185, futex 202 98,
        get_robust_list 274 100, set_robust_list 273 99
    """,
    "processes and threads": """
        fork 57 -, vfork 58 -, clone 56 220, execve 59 221, execveat 322 281, exit 60 93, exit_group 231 94,
        wait4 61 260, waitid 247 95, pidfd_open 434 434, pidfd_send_signal 424 424, set_tid_address 218 96,
        rseq 334 293, arch_prctl 158 -, prctl 157 167, personality 135 92, seccomp 317 277,
        landlock_create_ruleset 444 444, landlock_add_rule 445 445, landlock_restrict_self 446 446, getpid 39 172,
        getppid 110 173, gettid 186 178, getpgrp 111 -, getpgid 121 155, setpgid 109 154, getsid 124 156, setsid 112 157
    """,
    "users and rights": """
        getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150,
        getgroups 115 158, setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143, setresuid 117 147,
        setresgid 119 149, setfsuid 122 151, setfsgid 123 152, setgroups 116 159, capget 125 90, capset 126 91
    """,
    "signals": """
        kill 62 129, tkill 200 130, tgkill 234 131, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigpending 127 136,
        rt_sigsuspend 130 133, rt_sigtimedwait 128 137, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
        rt_sigreturn 15 139, sigaltstack 131 132, pause 34 -, alarm 37 -, restart_syscall 219 128
    """,
    "time": """
        time 201 -, gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
        nanosleep 35 101, getitimer 36 102, setitimer 38 103, timer_create 222 107, timer_settime 223 110,
        timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111, times 100 153
    """,
    "shares of the machine": """
        getrlimit 97 163, setrlimit 160 164, prlimit64 302 261, getrusage 98 165, getpriority 140 141,
        setpriority 141 140, ioprio_get 252 31, ioprio_set 251 30, sched_yield 24 124, sched_getaffinity 204 123,
        sched_setaffinity 203 122, sched_getparam 143 121, sched_setparam 142 118, sched_getscheduler 145 120,
        sched_setscheduler 144 119, sched_getattr 315 275, sched_setattr 314 274, sched_get_priority_max 146 125,
        sched_get_priority_min 147 126, sched_rr_get_interval 148 127
    """,
    "about the machine": """
        uname 63 160, sysinfo 99 179, getcpu 309 168, getrandom 318 278
    """,
    "for tracing (the kernel makes a program call these)": """
        uprobe 336 -, uretprobe 335 -
    """,
}

FORBIDDEN = {
    "namespaces and mounts": """
        unshare 272 97, setns 308 268, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51
    """,
    "other processes": """
        ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272
    """,
    "the machine's administration": """
        reboot 169 142, swapon 167 224, swapoff 168 225, acct 163 89, quotactl 179 60, sethostname 170 161,
        setdomainname 171 162, settimeofday 164 170, clock_settime 227 112, adjtimex 159 171, clock_adjtime 305 266,
        syslog 103 116, vhangup 153 58, iopl 172 -, ioperm 173 -, modify_ldt 154 -
    """,
    "the kernel's own programs": """
        init_module 175 105, finit_module 313 273, delete_module 176 106, kexec_load 246 104, kexec_file_load 320 294,
        bpf 321 280, perf_event_open 298 241
    """,
    "keys": """
        add_key 248 217, request_key 249 218, keyctl 250 219
    """,
    "access to files other than by path": """
        name_to_handle_at 303 264, open_by_handle_at 304 265, fanotify_init 300 262, fanotify_mark 301 263
    """,
    "placement of memory (the default filter of containers refuses these too)": """
        get_mempolicy 239 236, set_mempolicy 238 237, mbind 237 235, migrate_pages 256 238, move_pages 279 239,
        set_mempolicy_home_node 450 450
    """,
}

ABSENT = {
    "flags behind a pointer, which no filter can read; libraries then call `clone` and `openat`": "clone3 openat2",
    "asynchronous I/O: its queues bypass every filter, and the older kind has one limit for the whole machine": """
        io_uring_setup io_uring_enter io_uring_register io_setup io_submit io_cancel io_getevents io_pgetevents
        io_destroy
    """,
    "page faults of the kernel handled by a session, which can block the kernel": "userfaultfd",
    "memory that no watchdog counts": "memfd_secret",
    "memory of other processes, or what they read": "process_madvise process_mrelease pidfd_getfd cachestat",
    "mounts, by the newer calls": """
        open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr statmount listmount quotactl_fd
    """,
    "rarely used, and with a history": "vmsplice remap_file_pages",
    "too new for libraries to need them": """
        futex_waitv futex_wake futex_wait futex_requeue mseal setxattrat getxattrat listxattrat removexattrat
        file_getattr file_setattr lsm_get_self_attr lsm_set_self_attr lsm_list_modules
    """,
    "obsolete calls": """
        _sysctl afs_syscall create_module epoll_ctl_old epoll_wait_old get_kernel_syms get_thread_area getpmsg
        lookup_dcookie nfsservctl putpmsg query_module security set_thread_area sysfs tuxcall uselib ustat vserver
    """,
}
"""Calls that fail as on a kernel without them, so that libraries use an older way. The filter needs no numbers here;
the names are for readers and tests."""


def numbers(table: dict[str, str], machine: str) -> dict[str, int]:
    """Return the calls of a table that a machine has, with their numbers."""
    column = 1 + MACHINES.index(machine)
    entries = (entry.split() for text in table.values() for entry in text.split(","))
    return {entry[0]: int(entry[column]) for entry in entries if entry[column] != "-"}
