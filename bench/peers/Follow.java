import java.io.File;
import java.io.FileOutputStream;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.cache.ChildData;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.retry.RetryOneTime;

/**
 * Follows a tree with Curator's cache and keeps a file of it, as follow.py does.
 * Arguments: SERVER ZNODE FILE.
 */
public class Follow {
    static final TreeMap<String, String> values = new TreeMap<>();
    static Path file;
    static boolean ready;

    static void write() {
        try {
            Path tmp = Paths.get(file + ".tmp");
            StringBuilder b = new StringBuilder();
            values.forEach((k, v) -> b.append(k).append('=').append(v).append('\n'));
            try (FileOutputStream out = new FileOutputStream(tmp.toFile())) {
                out.write(b.toString().getBytes(StandardCharsets.UTF_8));
                out.getFD().sync();
            }
            Files.move(tmp, file, StandardCopyOption.ATOMIC_MOVE);
            try (FileChannel d = FileChannel.open(file.getParent())) {
                d.force(true);
            }
        } catch (java.io.IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    static synchronized void put(String root, ChildData d, boolean there) {
        if (d.getPath().equals(root)) return;
        String name = d.getPath().substring(root.length() + 1);
        if (there) values.put(name, new String(d.getData(), StandardCharsets.UTF_8));
        else values.remove(name);
        if (ready) write();
    }

    static synchronized void begin() {
        ready = true;
        write();
    }

    public static void main(String[] args) throws Exception {
        String root = args[1];
        file = Paths.get(args[2]);
        CuratorFramework c = CuratorFrameworkFactory.newClient(args[0], new RetryOneTime(1000));
        c.start();
        CountDownLatch loaded = new CountDownLatch(1);
        CuratorCache cache = CuratorCache.build(c, root);
        cache.listenable().addListener(CuratorCacheListener.builder()
            .forCreates(d -> put(root, d, true))
            .forChanges((old, d) -> put(root, d, true))
            .forDeletes(d -> put(root, d, false))
            .forInitialized(loaded::countDown).build());
        cache.start();
        loaded.await();
        begin();
        System.out.println("ready");
        while (System.in.read() >= 0) { }
        System.exit(0);
    }
}
