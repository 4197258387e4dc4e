// What becomes of requests when something fails, as a line of JSON: texts of replies, or of errors.
// Faults.exe CASE PROGRAM ARGUMENTS
using System;
using System.Collections.Generic;
using System.Threading;
using System.Threading.Tasks;
using Embedllm;

internal static class Faults
{
    private static int Main(string[] arguments)
    {
        var worker = new WorkerClient(arguments[1], arguments[2]);
        var outcomes = new List<object> { Outcome(() => First(worker, arguments[0])) };
        outcomes.Add(Outcome(() => worker.GenerateAsync(new GenerateParams { Prompt = "x" })));
        worker.Dispose();
        worker.Dispose(); // twice is fine
        Console.WriteLine(Json.Write(new Dictionary<string, object> { { "outcomes", outcomes } }));
        return 0;
    }

    private static async Task<Reply> First(WorkerClient worker, string name)
    {
        var asked = new GenerateParams { Prompt = "x" };
        switch (name)
        {
            case "onProgress":
                worker.OnProgress = _ => Fail();
                await worker.LoadAsync();
                return null;
            case "onLog":
                worker.OnLog = _ => Fail();
                await worker.LoadAsync();
                return null;
            case "onChunk": return await worker.GenerateAsync(asked, _ => Fail());
            case "no_json":
                asked.LogitBias = new Dictionary<string, double?> { { "5", double.NaN } };
                return await worker.GenerateAsync(asked);
            case "close_in_onChunk": return await worker.GenerateAsync(asked, _ => worker.Dispose());
            case "hang":
                var reply = worker.GenerateAsync(asked);
                worker.Close(200);
                return await reply;
            default: return await worker.GenerateAsync(asked);
        }
    }

    private static void Fail()
    {
        throw new InvalidOperationException("mine");
    }

    private static string Outcome(Func<Task<Reply>> request)
    {
        try
        {
            return request().Result?.Text;
        }
        catch (Exception error)
        {
            return error.GetBaseException().Message;
        }
    }
}
